"""What a search has found out so far: verdicts by canonical key, and the best repro."""

from __future__ import annotations

from typing import Protocol

from torchrepro.engine.failure import Failure
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict


class Store(Protocol):
    """Remembers verdicts, so that nothing is asked twice, and the best, so that nothing is lost."""

    def verdict(self, key: str) -> Verdict | None:
        """The verdict on the candidate with this canonical key, if it is known."""
        ...

    def remember(self, key: str, verdict: Verdict, *, pass_name: str) -> None:
        """Keep a verdict, so that it outlives the process."""
        ...

    def keep_best(self, repro: Repro, verdict: Verdict) -> None:
        """Keep the best repro so far, so that it outlives the process."""
        ...

    def also_seen(self, repro: Repro, verdict: Verdict) -> None:
        """Keep a repro that fails in another way; of each way the first."""
        ...


class MemoryStore:
    """A store for one process."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.best: tuple[Repro, Verdict] | None = None
        self.others: list[tuple[Repro, Verdict]] = []

    def verdict(self, key: str) -> Verdict | None:
        return self.verdicts.get(key)

    def remember(self, key: str, verdict: Verdict, *, pass_name: str) -> None:
        self.verdicts[key] = verdict

    def keep_best(self, repro: Repro, verdict: Verdict) -> None:
        self.best = (repro, verdict)

    def also_seen(self, repro: Repro, verdict: Verdict) -> None:
        if all(Failure.of(known) != Failure.of(verdict) for _, known in self.others):
            self.others.append((repro, verdict))
