"""Inquiry: the interface of a step of `locate`. The failing repro, and queries whose compiles are counted.

A step never runs anything itself. It queries verdicts on variations of the repro, or runs a job in a child
process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torchrepro.engine.oracle import IsolatedOracle
from torchrepro.engine.processes.child import Outcome
from torchrepro.engine.queries import Queries
from torchrepro.engine.store import Store
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict


class Inquiry(Queries):
    """Queries about a failing repro, to find the culprit.

    `repeats` is how often something is run before it counts as passing: more than once where the failure is
    flaky. `on_step` is called with a description of the current step, for the progress display. `asked` are
    the compiles before this inquiry began.
    """

    def __init__(
        self,
        repro: Repro,
        verdict: Verdict,
        oracle: IsolatedOracle,
        *,
        repeats: int = 1,
        on_step: Callable[[str], None] = lambda words: None,
        asked: int = 0,
        notes: Iterable[str] = (),
        store: Store | None = None,
    ) -> None:
        super().__init__(repro, verdict, oracle, store=store, repeats=repeats, asked=asked)
        self.repro, self.oracle, self.on_step, self.notes = repro, oracle, on_step, list(notes)

    def about(self, repro: Repro, verdict: Verdict) -> Inquiry:
        """Return an inquiry about another failing repro, with the same verdicts, notes and counts."""
        other = Inquiry(
            repro, verdict, self.oracle, repeats=self.repeats, on_step=self.on_step, store=self.store
        )
        other.statistics, other.notes, other._asked_before = self.statistics, self.notes, self._asked_before
        return other

    def passes(self, candidate: Repro) -> bool:
        """Return whether the failure is gone with this candidate."""
        return self.is_gone(self.verdict_on(candidate))

    def is_gone(self, verdict: Verdict) -> bool:
        """Return whether a verdict shows that the failure is gone, and no other one has replaced it.

        If the failure is a missing error, it is gone when the compiled function raises as eager does:
        then nothing can be compared, and the verdict is `invalid`, with eager's error.
        """
        if self.verdict.kind is Kind.MISSING_ERROR and verdict.kind is Kind.INVALID:
            return verdict.raised is not None and str(verdict.raised) == str(self.verdict.raised)
        return verdict.kind is Kind.PASS

    def ran(self, job: str, repro: Repro, *, compiles: int = 1, **payload: Any) -> Outcome:
        """Run `package.module:function(repro, payload, phase)` in a child process; it returns plain data."""
        self.count(queries=compiles)
        return self.oracle.ran(job, repro, **payload)
