"""Inquiry: what a step of `locate` sees. The failing repro, and answers, each compile of which is counted.

A step never runs anything itself. It asks for verdicts on variations of the repro, or for a job in a process
of its own. What was asked once is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchrepro.engine.baseline import Failure
from torchrepro.engine.canonical_key import canonical_key
from torchrepro.engine.oracle import IsolatedOracle
from torchrepro.engine.processes.reports import Outcome
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict


@dataclass(eq=False)
class Inquiry:
    """A failing repro whose guilty part is looked for."""

    repro: Repro
    verdict: Verdict
    oracle: IsolatedOracle
    repeats: int = 1
    """How often something is run before it counts as passing: more than once where the failure is flaky."""
    on_step: Callable[[str], None] = lambda words: None
    """Told in a few words what is looked at: for the progress that a user sees."""
    compiles: int = 0
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.failure = Failure.of(self.verdict)
        self._known: dict[str, Verdict] = {canonical_key(self.repro): self.verdict}

    def verdicts(self, candidates: Sequence[Repro]) -> list[Verdict]:
        """A verdict on each, several at a time; equal ones are run once, and each counts as a compile."""
        keys = [canonical_key(candidate) for candidate in candidates]
        todo = {key: one for key, one in zip(keys, candidates, strict=True) if key not in self._known}
        for _ in range(self.repeats):
            left = [key for key in todo if not (key in self._known and self._known[key].fails)]
            self.compiles += len(left)
            for index, verdict in self.oracle.judge([todo[key] for key in left]):
                self._known[left[index]] = verdict
        return [self._known[key] for key in keys]

    def verdict_on(self, candidate: Repro) -> Verdict:
        return self.verdicts([candidate])[0]

    def fails(self, candidate: Repro) -> bool:
        """Whether it fails as the original does."""
        return self.failure.shown_by(self.verdict_on(candidate))

    def is_gone(self, verdict: Verdict) -> bool:
        """Whether a verdict shows that the failure is gone, and no other one has come in its place.

        Where eager raises and the compiled function did not, that it now raises, too, is what was missing:
        then nothing can be compared, and the verdict is `invalid`, with eager's error.
        """
        if self.verdict.kind is Kind.MISSING_ERROR and verdict.kind is Kind.INVALID:
            return verdict.raised is not None and str(verdict.raised) == str(self.verdict.raised)
        return verdict.kind is Kind.PASS

    def ran(self, job: str, repro: Repro, *, compiles: int = 1, **payload: Any) -> Outcome:
        """`package.module:function(repro, payload, phase)` in a process of its own; plain data comes back."""
        self.compiles += compiles
        return self.oracle.ran(job, repro, **payload)
