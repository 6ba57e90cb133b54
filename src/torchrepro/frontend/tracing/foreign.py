"""Foreign code: Python of the user's that code in C runs by itself, an `__eq__` while a list is searched.

Such code is not stepped: what it reads is not guarded, and what it changes is changed for good. So it is
stopped before its first line, and the call that led to it becomes a break.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from torchrepro.frontend.breaks import Break, BreakKind
from torchrepro.frontend.tracing.classes import is_python_class, is_trusted_file

_OWN = "torchrepro.frontend"
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)


@contextmanager
def no_foreign_code(name: str) -> Iterator[None]:
    """Raises `Break` where the body, a call of `name`, would run a function of the user's."""
    outer = sys.getprofile()
    if outer is not None and not isinstance(outer, _Watch):
        yield  # somebody measures: nothing is noticed, as it is rare
        return
    # The collector may run code of the user's at any point, which has nothing to do with the call. To raise
    # in there is more than CPython bears (3.11 crashed).
    collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(_Watch(name))
    try:
        yield
    finally:
        sys.setprofile(outer)
        if collecting:
            gc.enable()


def natively(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in C with values that it may call back."""
    if not any(has_objects(value) for value in args):
        return function(*args)
    with no_foreign_code(name):
        return function(*args)


def has_objects(value: Any, depth: int = 3) -> bool:
    """Whether code in C may meet an object with methods in Python here."""
    kind = type(value)
    if is_python_class(kind):
        return True
    if not depth or not isinstance(value, _CONTAINERS):
        return False
    inside = (*dict.keys(value), *dict.values(value)) if isinstance(value, dict) else value
    return any(has_objects(item, depth - 1) for item in inside)


class _Watch:
    """A profile function. What it raises comes out of the call that it is told of."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stepping = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        own = str(frame.f_globals.get("__name__", "")).startswith(_OWN)
        if own:
            # A stepped callable or iterator: what it runs is followed.
            # (The first return is that of the function which began to watch.)
            self._stepping = max(0, self._stepping + (event == "call") - (event == "return"))
        elif event == "call" and not self._stepping and not _is_apart(frame.f_code):
            told = f"{self._name} runs {frame.f_code.co_qualname} by itself, which is not followed"
            raise Break(BreakKind.OPAQUE, told)


def _is_apart(code: CodeType) -> bool:
    """Code that the call is not about: of torch or Python, or the end of an object that has just died."""
    return code.co_name == "__del__" or is_trusted_file(code.co_filename)
