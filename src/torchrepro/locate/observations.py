"""Seen: what is known of a value inside a graph, in numbers: it crosses processes, the value does not."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchrepro.nouns.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Odd:
    """How many elements of a value are not finite."""

    nan: int = 0
    infinite: int = 0
    strange: int = 0
    """Of both, those for which the float64 truth is finite: an overflow, or an error."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The value of a node on both sides, against float64."""

    node: str
    wrong: bool = False
    """The compiled value is further from the truth than the judge allows."""
    guilty: bool | None = None
    """Wrong for what it was given: computed anew from the operands that the compiled graph had, the result is
    another. None: not asked, or an operand cannot be had."""
    eager: float | None = None
    """The largest error, relative to the largest magnitude of the truth; None where there is no truth."""
    compiled: float | None = None
    eager_odd: Odd = field(default_factory=Odd)
    compiled_odd: Odd | None = None
    """None: the compiled side did not get so far."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One run of each side with some values watched."""

    verdict: Verdict
    """Without its comparison, which is about thousands of values here."""
    seen: tuple[Seen, ...] = ()
    wrong_elsewhere: tuple[str, ...] = ()
    """Paths of what is wrong among the graph's own results: `out[0]`, `inputs[2]`."""
    nan_inputs: tuple[str, ...] = ()
    """Inputs of the graph that hold a NaN, by the names of their nodes."""

    @property
    def shows(self) -> bool:
        """Whether anything is wrong in it."""
        return bool(self.wrong_elsewhere) or any(seen.wrong for seen in self.seen)
