"""Oracle: who says whether a candidate fails, and how. Several candidates are asked about at a time.

Observer: who runs a repro to see more of it than a verdict. Never the search process itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torchrepro.cut.record_values import Recording, observed_values
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict


class Observer(Protocol):
    """Runs repros in isolation; `isolated.py` has the real one."""

    def record(self, repro: Repro) -> Recording | None:
        """The values inside, from an eager run; None where it does not come to an end."""
        ...

    def rounds(self, repro: Repro) -> Sequence[Verdict]:
        """A verdict for each set of inputs of one compilation; none where it cannot be had."""
        ...

    def graphs(self, repro: Repro) -> Sequence[Repro]:
        """The graphs that capture makes of a whole call of the user's code; none where it makes none."""
        ...


class ObserveHere:
    """Runs eagerly in this process: for graphs that are known to be harmless."""

    def record(self, repro: Repro) -> Recording | None:
        return observed_values(repro, limit=1 << 30)

    def rounds(self, repro: Repro) -> Sequence[Verdict]:
        return ()

    def graphs(self, repro: Repro) -> Sequence[Repro]:
        return ()


class Oracle(Protocol):
    """Judges candidates. The real one runs each in isolation; tests have one that only looks at the graph."""

    workers: int
    """How many candidates are judged at the same time."""

    def judge(self, candidates: Sequence[Repro]) -> Iterator[tuple[int, Verdict]]:
        """(index, verdict) of each, as they come; whoever stops reading ends those still under way."""
        ...
