"""Oracle and Observer: how candidates are judged and looked into; `isolated_oracle.py` has the real ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torchrepro.cut.record_values import Recording, observed_values
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict

JUDGE = "torchrepro.engine.jobs:judge"
JUDGE_BEFORE_CODE = "torchrepro.engine.jobs:judge_before_code"
ROUND_SECONDS = 20.0
"""No new set of inputs is begun after this many seconds."""


class Oracle(Protocol):
    """Judges candidates. The real one runs each in isolation; tests have one that only looks at the graph."""

    workers: int
    """How many candidates are judged at the same time."""

    def judge(
        self, candidates: Sequence[Repro], *, job: str = JUDGE, **payload: Any
    ) -> Iterator[tuple[int, Verdict]]:
        """Yield (index, verdict) of each as they come; closing the iterator cancels those still under way.

        `job` is called with each candidate and the payload, and returns a verdict.
        """
        ...


class Observer(Protocol):
    """Runs a repro in isolation to see more of it than a verdict."""

    def record(self, repro: Repro) -> Recording | None:
        """Return the values inside, from an eager run; None where it does not terminate."""
        ...

    def rounds(
        self, repro: Repro, *, own: int = 0, seconds: float | None = ROUND_SECONDS
    ) -> Sequence[Verdict]:
        """Return a verdict for each set of inputs of one compilation (`cut/batched_inputs.py`).

        Empty where it cannot be had: the process died.
        """
        ...

    def graphs(self, repro: Repro) -> Sequence[Repro]:
        """Return the graphs that capture makes of a whole call of the user's code, if any."""
        ...


class ObserveHere:
    """Runs eagerly in this process: for graphs that are known to be harmless."""

    def record(self, repro: Repro) -> Recording | None:
        return observed_values(repro, limit=1 << 30)

    def rounds(
        self, repro: Repro, *, own: int = 0, seconds: float | None = ROUND_SECONDS
    ) -> Sequence[Verdict]:
        return ()

    def graphs(self, repro: Repro) -> Sequence[Repro]:
        return ()
