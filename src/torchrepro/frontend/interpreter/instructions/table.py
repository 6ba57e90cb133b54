"""The table of instructions: which function runs which."""

from __future__ import annotations

from collections.abc import Callable
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
        raise Break(BreakKind.UNSUPPORTED, f"the instruction {name} is not stepped")


INSTRUCTIONS = _Table()


def instruction(*names: str) -> Callable[[Step], Step]:
    """Enter the function in the table, for the instructions of these names."""

    def enter(step: Step) -> Step:
        for name in names:
            INSTRUCTIONS[name] = step
        return step

    return enter
