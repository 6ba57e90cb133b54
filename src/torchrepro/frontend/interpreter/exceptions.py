"""Exceptions: matching handlers, what CPython keeps in `__context__`, and instructions as functions."""

from __future__ import annotations

import opcode
from collections.abc import Callable
from functools import cache
from types import CodeType, FunctionType
from typing import Any, NoReturn

_NOT_CAUGHT = "catching classes that do not inherit from BaseException is not allowed"
_NO_GROUPS = "catching ExceptionGroup with except* is not allowed. Use except instead."


def native(name: str, operand: int, count: int, globals: dict[str, Any]) -> FunctionType:
    """A function of one or two parameters that runs the instruction on them and returns what it leaves.

    Only for instructions without inline cache. The parameters are unbound first: an exception that is raised
    would refer to itself, by the traceback and this frame.
    """
    return FunctionType(_code(name, operand, count), globals)


@cache
def _code(name: str, operand: int, count: int) -> CodeType:
    template = (lambda first, second: None).__code__ if count == 2 else (lambda first: None).__code__
    steps = [
        ("RESUME", 0),
        *(("LOAD_FAST", index) for index in range(count)),
        *(("DELETE_FAST", index) for index in range(count)),
        (name, operand),
        ("RETURN_VALUE", 0),
    ]
    code = bytes(byte for step, argument in steps for byte in (opcode.opmap[step], argument))
    # An entry for all of them, without columns: formatting a traceback needs a position of each instruction.
    lines = bytes((0x80 | 13 << 3 | len(steps) - 1, 0))
    return template.replace(co_code=code, co_linetable=lines, co_stacksize=count + 1)


raise_again: Callable[[BaseException], NoReturn] = native("RERAISE", 0, 1, globals())
"""Raises an exception where it only goes on. A `raise` statement would also set its `__context__`."""


def chain(error: BaseException, handled: BaseException) -> None:
    """Note that `error` was raised while `handled` was being handled, without making a circle."""
    if error is handled:
        return
    link = handled
    while (context := link.__context__) is not None:
        if context is error:
            link.__context__ = None
            break
        link = context
    error.__context__ = handled


def matches(error: BaseException, expected: Any) -> bool:
    """Whether `except expected:` catches `error`: by inheritance, whatever `__subclasscheck__` says."""
    _check_classes(expected)
    return _is_one_of(error, expected)


def split_group(error: BaseException, expected: Any) -> tuple[BaseException | None, BaseException | None]:
    """What `except* expected:` does not catch of `error`, and what it catches."""
    _check_classes(expected)
    for kind in expected if isinstance(expected, tuple) else (expected,):
        if issubclass(kind, BaseExceptionGroup):
            raise TypeError(_NO_GROUPS)
    if _is_one_of(error, expected):
        caught = error
        if not isinstance(error, BaseExceptionGroup):
            caught = BaseExceptionGroup("", [error])
            caught.__traceback__ = error.__traceback__
        return None, caught
    if isinstance(error, BaseExceptionGroup):
        caught, rest = error.split(expected)
        return rest, caught
    return error, None


def _check_classes(expected: Any) -> None:
    for kind in expected if isinstance(expected, tuple) else (expected,):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(_NOT_CAUGHT)


def _is_one_of(error: BaseException, expected: Any) -> bool:
    if isinstance(expected, tuple):
        return any(_is_one_of(error, kind) for kind in expected)
    return expected in type(error).__mro__
