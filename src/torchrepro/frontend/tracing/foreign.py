"""Foreign code: Python of the user's that code in C runs by itself, an `__eq__` while a list is searched.

Such code is not stepped: what it reads is not guarded, and what it changes is changed for good. So it is
noticed, and the call that led to it becomes a break.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torchrepro.frontend.breaks import Break, BreakKind
from torchrepro.frontend.tracing.classes import is_trusted_file

_OWN = "torchrepro.frontend"


@contextmanager
def no_foreign_code(name: str) -> Iterator[None]:
    """Raises `Break` where the body, a call of `name`, ran a function of the user's."""
    if sys.getprofile() is not None:  # somebody measures: nothing is noticed, as it is rare
        yield
        return
    found: list[str] = []
    sys.setprofile(_watch(found))
    try:
        yield
    finally:
        sys.setprofile(None)
    if found:
        raise Break(BreakKind.OPAQUE, f"{name} runs {found[0]} by itself, which is not followed")


def _watch(found: list[str]) -> Any:
    stepping = 0

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal stepping
        own = str(frame.f_globals.get("__name__", "")).startswith(_OWN)
        if own:
            # A stepped callable or iterator: what it runs is followed.
            # (The first return is that of the function which began to watch.)
            stepping = max(0, stepping + (event == "call") - (event == "return"))
        elif event == "call" and not stepping and not is_trusted_file(frame.f_code.co_filename):
            found.append(frame.f_code.co_qualname)

    return watch
