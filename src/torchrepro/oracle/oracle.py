"""Oracle: who says whether a candidate fails, and how. Several candidates are asked about at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from torchrepro.repro import Repro
from torchrepro.verdict import Verdict


class Oracle(Protocol):
    """Judges candidates. The real one runs each in isolation; tests have one that only looks at the graph."""

    workers: int
    """How many candidates are judged at the same time."""

    def judge(self, candidates: Sequence[Repro]) -> Iterator[tuple[int, Verdict]]:
        """(index, verdict) of each, as they come; whoever stops reading ends those still under way."""
        ...
