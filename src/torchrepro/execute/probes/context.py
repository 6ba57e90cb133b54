"""What a probe works with: the repro, the judge, and the loop over what it varies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchrepro.execute.artefacts import Artefact, artefact_of
from torchrepro.judge.clone import clone_inputs
from torchrepro.judge.execute import Run
from torchrepro.judge.models import Judged, Phases, Subject, judge
from torchrepro.judge.rule import Rule
from torchrepro.nouns.probe import Probe
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict

_OF_THE_COMPILER = (Kind.MISMATCH, Kind.NON_FINITE, Kind.COMPILE_ERROR, Kind.RUN_ERROR)
"""Verdicts on a variation that become the probe's own kind; the evidence stays."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict of a probe, and the probe that asks for no more than what failed."""

    verdict: Verdict
    probe: Probe


@dataclass(frozen=True, eq=False)
class Trial:
    """One variation. `judge` returns None where it does not apply: a size outside the guards, for example."""

    name: str
    """How `Probe.tries` names it: short, and independent of the names in a graph."""
    judge: Callable[[], Verdict | None]
    words: str = ""
    """For a summary; the name where it is empty."""


@dataclass(frozen=True, eq=False)
class ProbeContext:
    """The repro that is probed, and how it is judged."""

    repro: Repro
    probe: Probe
    rule: Rule
    phase: Phases
    fp64: bool = True
    _began: float = field(default_factory=time.monotonic)

    def artefact(self, repro: Repro | None = None, *, compiles: bool = True) -> Artefact:
        """Return a compilation of its own, by default of the repro; with `compiles=False`, eager."""
        return artefact_of(repro or self.repro, self.phase, fp64=self.fp64, compiles=compiles)

    def judge(
        self,
        subject: Subject,
        *,
        rule: Rule | None = None,
        steady: bool = True,
        judged: Judged | None = None,
    ) -> Verdict:
        """Judge a subject, from the repro's random state; `steady`: eager is known to agree with itself."""
        rng = self.repro.ambient.rng or None
        return judge(subject, rule=rule or self.rule, rng=rng, phase=self.phase, steady=steady, judged=judged)

    def judge_baseline(self, artefact: Artefact, judged: Judged | None = None) -> Verdict:
        """Judge an artefact on the repro's own inputs. What fails there is no finding of a probe."""
        return self.judge(artefact.subject(self.repro.inputs), steady=False, judged=judged)

    def try_each(self, baseline: Verdict, trials: Iterable[Trial]) -> Finding:
        """Return the first trial that fails; or a pass, that says how many there were.

        Nothing is tried where the baseline does not pass: its own verdict says more.
        """
        if baseline.kind is not Kind.PASS:
            return Finding(baseline, self.probe)
        passed, notes = 0, baseline.notes
        for trial in trials:
            if self.probe.tries and trial.name not in self.probe.tries:
                continue
            if passed and self.is_over:
                notes += (f"stopped after {self.probe.seconds:g} s, before {trial.words or trial.name}",)
                break
            verdict = trial.judge()
            if verdict is None or not verdict.testable or verdict.kind is Kind.MISSING_ERROR:
                continue  # eager itself cannot do it
            if verdict.fails:
                return self.found(verdict, trial)
            passed += 1
        if not passed:
            return self.not_asked("nothing that it varies applies here")
        return Finding(self.passed(f"{passed} tried", notes), self.probe)

    def found(self, verdict: Verdict, trial: Trial) -> Finding:
        """Return a failing verdict as a finding of this probe."""
        if verdict.kind not in _OF_THE_COMPILER:
            return Finding(verdict, self.probe)  # out of memory, for example
        words = f"{trial.words or trial.name}: {verdict.summary}"
        narrow = replace(self.probe, tries=(trial.name,))
        return Finding(replace(verdict, kind=self.probe.kind, summary=words), narrow)

    def passed(self, words: str, notes: tuple[str, ...] = ()) -> Verdict:
        return Verdict(Kind.PASS, summary=f"{self.probe.kind.value}: {words}", notes=notes)

    def not_asked(self, reason: str) -> Finding:
        """Return that the question does not apply."""
        return Finding(Verdict(Kind.NOT_COMPARABLE, summary=f"not asked: {reason}"), self.probe)

    def baseline_of_cost(self) -> tuple[Artefact, str]:
        """Return what a cost is compared with: eager, or the repro as another compiler compiles it."""
        against = self.probe.against
        if against is None:
            return self.artefact(compiles=False), "eager"
        return self.artefact(replace(self.repro, compiler=against)), str(against)

    def finding_of_cost(self, baseline: Verdict, words: str, *, fails: bool) -> Finding:
        if fails:
            return Finding(Verdict(self.probe.kind, summary=words, notes=baseline.notes), self.probe)
        return Finding(self.passed(words, baseline.notes), self.probe)

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self._began > self.probe.seconds


def kept(run: Run) -> Run:
    """Return a copy of a run: memory that the next call may write to is not part of it."""
    outputs, gradients, inputs, state = clone_inputs(
        (run.outputs, dict(run.gradients), run.inputs, dict(run.state))
    )
    return replace(run, outputs=outputs, gradients=gradients, inputs=inputs, state=state)


def giving(run: Run) -> Callable[[AbstractContextManager[Any]], Run]:
    """Return a side of a `Subject` that was run before."""

    def give(around: AbstractContextManager[Any]) -> Run:
        with around:  # it has changed the stance of the compilers by now
            return run

    return give


def shifted(value: Any) -> Any:
    """Return another value of the same kind for a call that only has to differ: floats are negated and moved.

    Everything else stays: integers are often indices.
    """
    if isinstance(value, torch.Tensor) and type(value) is torch.Tensor and value.is_floating_point():
        with torch.no_grad():
            return (0.5 - value.detach()).to(value.dtype).requires_grad_(value.requires_grad)
    return value
