"""Subject: a part of a repro that is varied, its variations and trials, and what they say about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from torchrepro.engine.baseline import Failure
from torchrepro.explain.rules import place_of
from torchrepro.explain.sentences import listed
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import Area, Fact
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
    """Judged by itself; False: next to others in one compilation."""


@dataclass(frozen=True)
class Evidence:
    """The labels of what was tried of one subject, by what became of the failure, in the order tried."""

    failing: tuple[str, ...]
    passing: tuple[str, ...]
    otherwise: tuple[str, ...]

    @classmethod
    def of(cls, trials: Sequence[Trial], own: str = "") -> Evidence:
        """`own` is the label of the repro itself, which fails."""

        def labels(outcome: Outcome) -> tuple[str, ...]:
            return tuple(dict.fromkeys(trial.variation.label for trial in trials if trial.outcome is outcome))

        failing = tuple(dict.fromkeys((*((own,) if own else ()), *labels(Outcome.FAILS))))
        return cls(failing, labels(Outcome.PASSES), labels(Outcome.OTHERWISE))

    @property
    def tried(self) -> int:
        return len(self.failing) + len(self.passing)


@dataclass(frozen=True, eq=False)
class Subject:
    """A part of the repro that is varied: in which ways, and how to state what was found."""

    area: Area
    name: str
    own: str
    """What the part is in the repro itself, as a label."""
    variations: Sequence[Variation]
    sentence: Callable[[Evidence, Sequence[Trial]], str]
    short: Callable[[Evidence], str] | None = None
    """What to call the part in a list of what does not matter; None: by its name."""
    refine: Callable[[Sequence[Trial]], list[Variation]] | None = None
    """More variations, between one that fails and one that passes; None: there is no order between them."""
    matters: bool = False
    """Worth telling even if no variation passes."""

    def trials_of(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials of this subject."""
        if self.refine is None:
            return [trial for trial in trials if trial.variation in self.variations]
        return [t for t in trials if t.variation.area is self.area and t.variation.subject == self.name]

    def fact(self, trials: Sequence[Trial]) -> Fact | None:
        """Return what was found out; None if nothing could be tried."""
        ours = self.trials_of(trials)
        ordered = ours if self.refine is None else sorted(ours, key=lambda trial: place_of(amount_of(trial)))
        evidence = Evidence.of(ordered, self.own)
        if evidence.tried < 2:
            return None
        sentence = self.sentence(evidence, ours)
        if evidence.otherwise:
            sentence += f"; another failure with {listed(evidence.otherwise)}"
        return Fact(
            self.area,
            self.name,
            sentence,
            matters=self.matters or bool(evidence.passing),
            failing=evidence.failing,
            passing=evidence.passing,
            otherwise=evidence.otherwise,
            short=self.short(evidence) if self.short else self.name,
        )

    def varied(
        self, label: str, repro: Repro, edit: str, *, amount: float | None = None, step: float = 0.0
    ) -> Variation:
        """Return a variation of this subject."""
        return Variation(self.area, self.name, label, repro, edit, amount, step)

    def having(self, variations: Sequence[Variation]) -> Subject:
        """Return this subject with its variations."""
        return replace(self, variations=tuple(variations))


def amount_of(trial: Trial) -> float:
    return float("nan") if trial.variation.amount is None else trial.variation.amount


def amounts(trials: Sequence[Trial], outcome: Outcome) -> list[float]:
    """Return the numbers that were tried with this outcome."""
    found = (trial.variation.amount for trial in trials if trial.outcome is outcome)
    return [amount for amount in found if amount is not None]


def sentence_on_choices(own: str, evidence: Evidence) -> str:
    """Named alternatives, of which the repro has `own`."""
    others = [label for label in evidence.failing if label != own]
    if not evidence.passing:
        return f"{listed([own, *others])} alike"
    passes = verbed(evidence.passing, "pass")
    return f"{listed([own, *others])} alike, {passes}" if others else f"only {own}: {passes}"


def verbed(labels: Sequence[str], verb: str) -> str:
    """`a passes`, `a and b pass`."""
    ending = "" if len(labels) > 1 else "es" if verb.endswith("s") else "s"
    return f"{listed(labels)} {verb}{ending}"
