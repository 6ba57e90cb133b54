"""Origin: which of the graphs of a program a repro is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Origin:
    """A graph among those that capture made of a program."""

    number: int
    """From 0, in the order of compilation; a backward graph has the number of its forward."""
    seen: int
    """How many captured graphs there were when it was kept."""
    compilation: int = 0
    """How often the same code of the user had been compiled before: 0 unless it was compiled again."""
    backward: bool = False
    """Whether AOT made it for the gradients of graph `number`."""
    source: str = ""
    """Where it begins in the user's program: `model.py:12 in forward`."""

    def __str__(self) -> str:
        """`graph 1 of 3, compiled for the second time`."""
        of = f" of {self.seen}" if self.seen > 1 else ""
        whose = "backward of " if self.backward else ""
        again = f", compiled again ({self.compilation + 1}. time)" if self.compilation else ""
        return f"{whose}graph {self.number}{of}{again}"
