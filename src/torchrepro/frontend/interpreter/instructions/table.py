"""The table of instructions: which function runs which; and instructions of CPython as functions."""

from __future__ import annotations

import opcode
from collections.abc import Callable, Mapping
from functools import cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from torchrepro.frontend.graph_breaks import Unsupported
from torchrepro.frontend.interpreter.frame import Frame, Signal

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter

Step: TypeAlias = "Callable[[Interpreter, Frame, Any], int | Signal | None]"
"""Runs an instruction, given its argument or where it jumps to.

Returns the index to go to if that is not the next instruction, and a signal where the frame is left.
"""


class _Table(dict[str, Step]):
    def __missing__(self, name: str) -> Step:
        raise Unsupported(f"the instruction {name} is not supported")


INSTRUCTIONS = _Table()


def instruction(*names: str) -> Callable[[Step], Step]:
    """Register the function in the table, for the instructions of these names."""

    def enter(step: Step) -> Step:
        for name in names:
            INSTRUCTIONS[name] = step
        return step

    return enter


def take(stack: list[Any], count: int) -> list[Any]:
    """Pop `count` values, deepest first."""
    start = len(stack) - count
    values = stack[start:]
    del stack[start:]
    return values


def enter_all(steps: Mapping[str, Callable[..., Any]], *, pushes: bool = True) -> None:
    """Register instructions that pop values and push the result of a function.

    The function's parameters are the interpreter, the instruction's argument and the values, deepest first.
    """

    def enter(name: str, function: Callable[..., Any], count: int) -> None:
        @instruction(name)
        def step(op: Interpreter, frame: Frame, argument: Any) -> None:
            result = function(op, argument, *take(frame.stack, count))
            if pushes:
                frame.stack.append(result)

    for name, function in steps.items():
        enter(name, function, function.__code__.co_argcount - 2)


def native(name: str, operand: int, count: int, globals: dict[str, Any], leaves: int = 1) -> FunctionType:
    """Return a function of `count` parameters that runs the instruction on them and returns what it leaves.

    That is a tuple where it leaves several values. Only for instructions without inline cache. The parameters
    are unbound first: a raised exception would refer to itself through its traceback and this frame.
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
"""Raises an exception that only propagates. A `raise` statement would also set its `__context__`."""


def chain(error: BaseException, handled: BaseException) -> None:
    """Set `error.__context__` to `handled`, without making a cycle."""
    if error is handled:
        return
    link = handled
    while (context := link.__context__) is not None:
        if context is error:
            link.__context__ = None
            break
        link = context
    error.__context__ = handled
