"""The table of instructions: which function runs which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.interpreter.frame import Frame, Signal

if TYPE_CHECKING:
    from torchrepro.frontend.interpreter.interpreter import Interpreter

Step: TypeAlias = "Callable[[Interpreter, Frame, Any], int | Signal | None]"
"""Runs an instruction, given its argument or where it jumps to.

Returns where to go on if that is not the next instruction, and a signal where the frame is left.
"""


class _Table(dict[str, Step]):
    def __missing__(self, name: str) -> Step:
        raise Break(BreakKind.UNSUPPORTED, f"the instruction {name} is not supported")


INSTRUCTIONS = _Table()


def instruction(*names: str) -> Callable[[Step], Step]:
    """Enter the function in the table, for the instructions of these names."""

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
    """Enter instructions that pop values and push what a function makes of them.

    The function has as parameters the interpreter, the instruction's argument and the values, deepest first.
    """

    def enter(name: str, function: Callable[..., Any], count: int) -> None:
        @instruction(name)
        def step(op: Interpreter, frame: Frame, argument: Any) -> None:
            result = function(op, argument, *take(frame.stack, count))
            if pushes:
                frame.stack.append(result)

    for name, function in steps.items():
        enter(name, function, function.__code__.co_argcount - 2)
