"""Exceptions: instructions of CPython as functions, and what it keeps in `__context__`."""

from __future__ import annotations

import opcode
from collections.abc import Callable
from functools import cache
from types import CodeType, FunctionType
from typing import Any, NoReturn


def native(name: str, operand: int, count: int, globals: dict[str, Any], leaves: int = 1) -> FunctionType:
    """A function of `count` parameters that runs the instruction on them and returns what it leaves.

    That is a tuple where it leaves several values. Only for instructions without inline cache. The parameters
    are unbound first: an exception that is raised would refer to itself, by the traceback and this frame.
    """
    return FunctionType(_code(name, operand, count, leaves), globals)


@cache
def _code(name: str, operand: int, count: int, leaves: int) -> CodeType:
    steps = [
        ("RESUME", 0),
        *(("LOAD_FAST", index) for index in range(count)),
        *(("DELETE_FAST", index) for index in range(count)),
        (name, operand),
        *([("BUILD_TUPLE", leaves)] if leaves > 1 else ()),
        ("RETURN_VALUE", 0),
    ]
    return (lambda: None).__code__.replace(
        co_code=bytes(byte for step, argument in steps for byte in (opcode.opmap[step], argument)),
        co_argcount=count,
        co_nlocals=count,
        co_varnames=("first", "second", "third")[:count],
        # An entry for each step, without columns: formatting a traceback needs their positions.
        co_linetable=bytes((0x80 | 13 << 3, 0)) * len(steps),
        co_stacksize=count + 1,
    )


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
