"""A part of a repro that is varied (subject), its variations and trials, and the facts that follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from torchrepro.engine.baseline import Failure
from torchrepro.explain.rules import changes, limits_of, listed
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import Area, Fact
from torchrepro.nouns.verdict import Kind, Verdict


class Outcome(StrEnum):
    """What became of the failure."""

    FAILS = "fails"
    PASSES = "passes"
    OTHERWISE = "fails otherwise"
    UNKNOWN = "unknown"
    """Eager itself fails, or it was not run: reported nowhere."""

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
    """The part: `x`, `x.dim 1`, `dtype`. A fact is about all of its variations together."""
    label: str
    """What the part became: `16`, `inf`, `bfloat16`."""
    repro: Repro
    edit: str
    """The change in words: `size 16 in dim 1 of x`."""
    amount: float | None = None
    """The label as a number, where it is one."""
    step: float = 0.0
    """How large the change is, among the variations of its subject: the smallest that passes is shown."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A variation, and what became of the failure."""

    variation: Variation
    outcome: Outcome
    alone: bool = True
    """Judged by itself; False: next to others in one compilation."""


@dataclass(frozen=True)
class Evidence:
    """The labels of the variations of one subject that were tried, by outcome, in the order tried."""

    failing: tuple[str, ...]
    passing: tuple[str, ...]
    otherwise: tuple[str, ...]
    trials: Sequence[Trial] = ()

    @classmethod
    def of(cls, trials: Sequence[Trial], own: str = "") -> Evidence:
        """Return the evidence of trials; `own` is the label of the repro itself, which fails."""
        labels: dict[Outcome, dict[str, None]] = {outcome: {} for outcome in Outcome}
        if own:
            labels[Outcome.FAILS][own] = None
        for trial in trials:
            labels[trial.outcome][trial.variation.label] = None
        fails, passes, otherwise, _ = (tuple(found) for found in labels.values())
        return cls(fails, passes, otherwise, trials)

    def numbers(self, own: float | None) -> tuple[list[float], list[float]]:
        """Return the numbers that fail, with that of the repro itself, and those that pass; both sorted."""
        found: dict[Outcome, set[float]] = {outcome: set() for outcome in Outcome}
        if own is not None:
            found[Outcome.FAILS].add(own)
        for trial in self.trials:
            if trial.variation.amount is not None:
                found[trial.outcome].add(trial.variation.amount)
        return sorted(found[Outcome.FAILS], key=_place), sorted(found[Outcome.PASSES], key=_place)


def _place(number: float) -> tuple[bool, float]:
    """Return a sort key: numbers in their order, NaN last."""
    return (True, 0.0) if number != number else (False, number)


@dataclass(eq=False)
class Subject:
    """A part of the repro that is varied: its variations, and how to state the result."""

    area: Area
    name: str
    own: str
    """What the part is in the repro itself, as a label."""
    sentence: Callable[[Evidence], str]
    short: Callable[[Evidence], str] | None = None
    """What to call the part in a list of what does not matter; None: by its name."""
    refine: Callable[[Evidence], None] | None = None
    """Add variations between one that fails and one that passes; None: they have no order."""
    matters: bool = False
    """Reported even if no variation passes."""
    inputs: tuple[int, ...] = ()
    """The numbers of the inputs that are varied."""
    amount: float | None = None
    """The part in the repro itself as a number, where it is one."""
    variations: list[Variation] = field(default_factory=list)

    def add(
        self, label: str, repro: Repro, edit: str, *, amount: float | None = None, step: float = 0.0
    ) -> None:
        """Add a variation."""
        self.variations.append(Variation(self.area, self.name, label, repro, edit, amount, step))

    def refined(self, trials: Sequence[Trial]) -> list[Variation]:
        """Return the variations that refining adds after these trials."""
        count = len(self.variations)
        if self.refine is not None:
            self.refine(self.evidence(trials))
        return self.variations[count:]

    def evidence(self, trials: Sequence[Trial]) -> Evidence:
        """Return the evidence of this subject's trials; numbers sorted."""
        ours = [trial for trial in trials if trial.variation in self.variations]
        if self.refine is not None:
            amounts = {t: math.nan if t.variation.amount is None else t.variation.amount for t in ours}
            ours.sort(key=lambda trial: _place(amounts[trial]))
        return Evidence.of(ours, self.own)

    def fact(self, trials: Sequence[Trial]) -> Fact | None:
        """Return the result in words; None if nothing could be tried."""
        evidence = self.evidence(trials)
        if len(evidence.failing) + len(evidence.passing) < 2:
            return None
        sentence = self.sentence(evidence)
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
            inputs=self.inputs,
            limits=limits_of(*evidence.numbers(self.amount)),
        )


def refining(
    own: float | None,
    vary: Callable[[float], None],
    between: Callable[[float, float, int], Sequence[float]],
    room: int,
) -> Callable[[Evidence], None]:
    """Return a function that varies by at most `room` numbers between failing and passing ones."""

    def refine(evidence: Evidence) -> None:
        limits = changes(*([n for n in found if math.isfinite(n)] for found in evidence.numbers(own)))
        if len(limits) <= 2:  # else it is a pattern, which more numbers do not clarify
            for low, high in limits:
                for number in between(low, high, room // len(limits)):
                    vary(number)

    return refine


def switch(
    area: Area,
    name: str,
    own: str,
    other: str,
    changed: Repro,
    *,
    edit: str = "",
    alike: str = "",
    matters: str = "",
) -> Subject:
    """Return a subject with one alternative, and the sentences if it does not matter and if it does."""
    alike = alike or f"{name} {own} and {other} alike"
    matters = matters or f"only with {name} {own}, not {other}"
    subject = Subject(area, name, own, lambda evidence: matters if evidence.passing else alike)
    compiled = "compiled with " if area is Area.COMPILER else ""
    subject.add(other, changed, edit or f"{compiled}{name} {other}")
    return subject


def sentence_on_choices(own: str, evidence: Evidence) -> str:
    """Return the sentence on named alternatives, of which the repro has `own`."""
    others = [label for label in evidence.failing if label != own]
    if not evidence.passing:
        return f"{listed([own, *others])} alike"
    passes = verbed(evidence.passing, "pass")
    return f"{listed([own, *others])} alike, {passes}" if others else f"only {own}: {passes}"


def verbed(labels: Sequence[str], verb: str) -> str:
    """Return the labels with the verb: `a passes`, `a and b pass`."""
    ending = "" if len(labels) > 1 else "es" if verb.endswith("s") else "s"
    return f"{listed(labels)} {verb}{ending}"
