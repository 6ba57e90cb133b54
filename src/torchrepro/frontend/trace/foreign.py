"""Foreign code: what a call that is not traced does by itself.

It runs Python of the user's (an `__eq__` while a list is searched); or, in a library, a function in C that
does more than compute (it writes, it looks at frames). What such code reads is not guarded, and what it
changes cannot be undone. So it is stopped before it starts, and the call that led to it becomes a break.
"""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import BuiltinFunctionType, FrameType, MethodWrapperType, ModuleType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.codegen.objects import elements
from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.interpreter.generator import SteppedGenerator
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace.classes import (
    MISSING,
    OWN_MODULES,
    is_python_class,
    is_trusted_file,
    static_lookup,
)
from torchrepro.frontend.trace.rules import is_native_iterator, looks_at_frames, why_not_native

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter

_CONTAINERS = (list, tuple, dict, set, frozenset, deque)

_READ_MODULE = frozenset({"collections", "enum", "typing", "typing_extensions"})
"""Libraries that look at the frame of their caller for the name of its module, and for nothing else."""
_HARMLESS = frozenset({id, compile, exec, eval, globals, locals, sys.getrecursionlimit})
"""They affect the library alone: it generates a class from text, or marks what it has seen."""


class RunsForeignCode(Break):
    """A call that is not traced was about to call a function of the user's."""


@contextmanager
def no_foreign_code(name: str, *, library: bool = False) -> Iterator[None]:
    """Raise `Break` where the body, a call of `name`, would run a function of the user's.

    `library`: `name` is a Python function of a library, so the C functions that it calls are checked too.
    """
    outer = sys.getprofile()
    if outer is not None and not is_a(outer, _Watch):
        if library:
            raise Break(BreakKind.OPAQUE, f"what {name} does is not seen while a profiler runs")
        yield  # another profiler is active: nothing is checked, which is rare
        return
    # The collector may run code of the user's at any point, unrelated to the call. Raising inside it
    # crashes CPython (3.11).
    collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(_Watch(name, library))
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
    """Return whether code in C may reach an object with methods in Python through `value`."""
    kind = type(value)
    if is_python_class(kind):
        return True
    if not depth or not is_a(value, _CONTAINERS):
        return False
    inside = (*dict.keys(value), *dict.values(value)) if is_a(value, dict) else elements(value)
    return any(has_objects(item, depth - 1) for item in inside)


class _Watch:
    """A profile function. What it raises propagates from the call that triggered it."""

    def __init__(self, name: str, library: bool) -> None:
        self._name = name
        self._library = library
        self._tracing = 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        own = str(frame.f_globals.get("__name__", "")).startswith(OWN_MODULES)
        if own:
            # A traced callable or iterator: what it runs is traced.
            # (The first return is that of the function that installed the profiler.)
            self._tracing = max(0, self._tracing + (event == "call") - (event == "return"))
        elif event == "call" and not self._tracing and not _is_apart(frame):
            told = f"{self._name} runs {frame.f_code.co_qualname} by itself, which is not traced"
            raise RunsForeignCode(BreakKind.OPAQUE, told)
        elif event == "c_call" and self._library and not self._tracing:
            self._in_library(frame, argument)

    def _in_library(self, frame: FrameType, function: Any) -> None:
        if function in _HARMLESS:
            return
        if looks_at_frames(function) and frame.f_globals.get("__name__") in _READ_MODULE:
            return
        reason = why_not_native(function)
        if reason is not None:
            raise Break.of(replace(reason, text=f"{self._name} does more than compute: {reason.text}"))


def _is_apart(frame: FrameType) -> bool:
    """Return whether a frame is allowed: code of torch or Python, or the finaliser of an object."""
    code, space = frame.f_code, str(frame.f_globals.get("__name__", ""))
    if code.co_name == "__del__" or is_trusted_file(code.co_filename):
        return True
    return space == "typing_extensions" or space.startswith("namedtuple_")  # replacements of Python's own


class SteppedCallable:
    """A function of the user's as a native (`sorted`, `map`) may call it."""

    __slots__ = ("function", "interpreter")

    def __init__(self, interpreter: Interpreter, function: Any) -> None:
        self.interpreter = interpreter
        self.function = function

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self.interpreter.calls.call(self.function, args, kwargs)


class SteppedIterator(Iterator[Any]):
    """An iterator of the user's as a native (`list`, `zip`) may advance it."""

    __slots__ = ("interpreter", "iterator")

    def __init__(self, interpreter: Interpreter, iterator: Any) -> None:
        self.interpreter = interpreter
        self.iterator = iterator

    def __next__(self) -> Any:
        return self.interpreter.items.next(self.iterator)


def _without_objects(value: Any) -> Any:
    """Return a value that code in C compares, adds or tests; break where that would be a method in Python."""
    if has_objects(value):
        raise Break(BreakKind.UNSUPPORTED, f"code in C uses a {type(value).__name__} while it iterates")
    return value


class CheckedCallable(SteppedCallable):
    """A function whose results a native (`groupby`) compares later."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return _without_objects(super().__call__(*args, **kwargs))


class CheckedIterator(SteppedIterator):
    """An iterator whose items a native (`accumulate`, `compress`) adds or tests later."""

    def __next__(self) -> Any:
        return _without_objects(super().__next__())


def is_iterator(value: Any) -> bool:
    """Return whether it is an iterator, whose items are not known yet."""
    return is_a(value, SteppedGenerator | SteppedIterator) or is_native_iterator(value)


def unbound(function: Any) -> tuple[Any, Any]:
    """Return a method in C as its class has it, and the object it is bound to."""
    owner = getattr(function, "__self__", MISSING)
    if is_a(function, MethodWrapperType):
        return static_lookup(function.__objclass__, function.__name__), owner
    of_object = owner is not None and not is_a(owner, ModuleType | type)
    if is_a(function, BuiltinFunctionType) and of_object:
        return static_lookup(type(owner), function.__name__), owner
    return function, MISSING
