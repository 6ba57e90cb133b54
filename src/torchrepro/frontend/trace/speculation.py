"""The speculation log: how far a trace got, where it failed, and whether another attempt takes the same path.

A break is known only after the instruction that cannot be captured has been tried. So tracing starts again,
with the order to stop right before it. Nothing of the user's was changed: both attempts take the same path.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torchrepro.frontend.bytecode.program import Position
from torchrepro.frontend.graph_breaks import BreakReason, Control, Where
from torchrepro.nouns.errors import HarnessError


@dataclass(frozen=True, slots=True)
class Stop:
    """The n-th visit of an instruction of the outermost frame."""

    index: int
    visit: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why capture cannot go past a stop."""

    reason: BreakReason
    where: Where
    inside: bool = False
    """In a function that the instruction calls: that function is traced for itself when Python calls it."""
    frames: tuple[Where, ...] = ()
    """From the outermost frame to the place, where known."""
    position: Position | None = None
    """Of the instruction in the innermost frame: what a traceback would underline."""


class Reached(Control):
    """The attempt is at the instruction before which the region ends."""


class Diverged(HarnessError):
    """A second attempt met other instructions than the first: something outside of the frame decides."""


@dataclass(slots=True)
class SpeculationLog:
    path: list[int] = field(default_factory=list)
    """Instructions of the outermost frame, in the order in which the longest attempt met them."""
    failures: dict[Stop, Failure] = field(default_factory=dict)
    position: int = 0
    _visits: Counter[int] = field(default_factory=Counter)

    def restart(self) -> None:
        self.position = 0
        self._visits.clear()

    def visit(self, index: int) -> None:
        """The outermost frame is about to run an instruction."""
        if self.position < len(self.path):
            if self.path[self.position] != index:
                raise Diverged(
                    f"instruction {index} in place of {self.path[self.position]} in a second trace"
                )
        else:
            self.path.append(index)
        self._visits[index] += 1
        self.position += 1
        if self.current in self.failures:
            raise Reached

    @property
    def current(self) -> Stop:
        """The instruction that is running, or was just reached."""
        index = self.path[self.position - 1]
        return Stop(index, self._visits[index])

    def stop_at(self, position: int) -> Stop:
        """The stop that is at a position of the path."""
        index = self.path[position]
        return Stop(index, self.path[: position + 1].count(index))
