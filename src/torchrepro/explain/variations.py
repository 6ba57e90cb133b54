"""Variation: a repro with one part of it changed, and what became of the failure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from torchrepro.engine.baseline import Failure
from torchrepro.nouns.explanation import Area
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict


class Outcome(StrEnum):
    """What became of the failure."""

    FAILS = "fails"
    PASSES = "passes"
    OTHERWISE = "fails otherwise"
    UNKNOWN = "unknown"
    """Eager itself fails, or it was not asked: nothing is said about it anywhere."""

    @classmethod
    def of(cls, verdict: Verdict, failure: Failure) -> Outcome:
        if failure.shown_by(verdict):
            return cls.FAILS
        if verdict.kind is Kind.PASS:
            return cls.PASSES
        return cls.OTHERWISE if verdict.fails else cls.UNKNOWN


@dataclass(frozen=True, eq=False)
class Variation:
    """A repro with one part of it changed."""

    area: Area
    subject: str
    """The part: `x`, `x.dim 1`, `dtype`. What is said about it is said of all variations of it together."""
    label: str
    """What the part became: `16`, `inf`, `bfloat16`."""
    repro: Repro
    edit: str
    """The change in words, as for a list of what one could do: `16 in dim 1 of x`."""
    amount: float | None = None
    """The label as a number, where it is one."""
    step: float = 0.0
    """How far it goes, among the variations of its subject: the nearest one that passes is shown."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A variation, and what became of the failure."""

    variation: Variation
    outcome: Outcome
    alone: bool = True
    """Judged by itself; False: beside others in one compilation."""
