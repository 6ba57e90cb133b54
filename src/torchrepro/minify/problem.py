"""Problem: what a pass sees. The best repro so far, and answers to the question "does this one fail as well?"

A pass never runs anything and never judges. It proposes candidates, best first, and the problem answers from
what is known, rejects what cannot run, asks the oracle about the rest, several at a time, and adopts what
fails as the original does and is smaller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from torchrepro.minify.canonical import canonical_key
from torchrepro.minify.failure import Failure
from torchrepro.minify.oracle import Oracle
from torchrepro.minify.order import Size, size_of
from torchrepro.minify.store import MemoryStore, Store
from torchrepro.minify.subsets import minimal_subset
from torchrepro.minify.validity import why_invalid
from torchrepro.repro import Repro
from torchrepro.verdict import Kind, Verdict

Item = TypeVar("Item")


class SearchStopped(Exception):
    """The search ends early, with what it has: the time is up, or the user has had enough."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a pass has cost and brought."""

    queries: int = 0
    """Candidates that were given to the oracle."""
    known: int = 0
    """Candidates whose verdict was known already."""
    rejected: int = 0
    """Candidates that could not run at all, found without the oracle."""
    adopted: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the search stands, for whoever shows it."""

    pass_name: str
    start: Size
    best: Size
    queries: int
    known: int
    seconds: float


@dataclass(eq=False)
class Problem:
    """A failing repro on its way to the smallest one."""

    original: Repro
    original_verdict: Verdict
    oracle: Oracle
    store: Store = field(default_factory=MemoryStore)
    repeats: int = 1
    """How often a candidate is run before it counts as passing: more than once where the failure is flaky."""
    deadline: float | None = None
    """In terms of `time.monotonic`; None: no limit."""
    notify: Callable[[Progress], None] = lambda progress: None

    def __post_init__(self) -> None:
        self.failure = Failure.of(self.original_verdict)
        self.best, self.best_verdict = self.original, self.original_verdict
        self.start_size = self.best_size = size_of(self.original)
        self.statistics: dict[str, Statistics] = {}
        self.pass_name = ""
        self.began = time.monotonic()

    # What passes use.

    def fails(self, candidate: Repro | None) -> bool:
        """Whether a candidate fails as the original does. None stands for one that could not be built."""
        return self.first_failing([candidate]) is not None

    def accept(self, candidate: Repro | None) -> bool:
        """Make a candidate the best if it fails as the original does and is smaller than the best."""
        return self.accept_first([candidate]) is not None

    def accept_first(self, candidates: Sequence[Repro | None]) -> int | None:
        """Adopt the first that fails and is smaller than the best; its index. Give the boldest one first."""
        smaller = [
            candidate if candidate is not None and size_of(candidate) < self.best_size else None
            for candidate in candidates
        ]
        found = self.first_failing(smaller)
        if found is not None:
            chosen = smaller[found]
            assert chosen is not None
            self._adopt(chosen)
        return found

    def first_failing(self, candidates: Sequence[Repro | None]) -> int | None:
        """The index of the first that fails, in the order given; those after it may not have been asked."""
        step = max(1, self.oracle.workers)
        for start in range(0, len(candidates), step):
            found = self._first_of(candidates[start : start + step])
            if found is not None:
                return start + found
        return None

    def minimise(self, items: Sequence[Item], build: Callable[[Sequence[Item]], Repro | None]) -> list[Item]:
        """The fewest items for which `build(items)` still fails, and make that the best if it is smaller.

        `build` is given a part of the items, in their order, and returns None where that makes no repro.
        The answer is 1-minimal: without any single one of its items it does not fail.
        """

        def fails_first(parts: Sequence[Sequence[Item]]) -> int | None:
            return self.first_failing([build(part) for part in parts])

        kept = minimal_subset(items, fails_first, width=max(1, self.oracle.workers))
        if len(kept) < len(items):
            self.accept(build(kept))
        return kept

    def verdict_on(self, candidate: Repro) -> Verdict | None:
        """The verdict on a candidate that has been asked about; None if it has not."""
        return self.store.verdict(canonical_key(candidate))

    # What the search uses.

    @contextmanager
    def running(self, pass_name: str) -> Iterator[None]:
        """Put what is asked in the body down to a pass."""
        before, self.pass_name = self.pass_name, pass_name
        started = time.monotonic()
        try:
            yield
        finally:
            self._count(seconds=time.monotonic() - started)
            self.pass_name = before

    @property
    def queries(self) -> int:
        return sum(row.queries for row in self.statistics.values())

    def resume_from(self, best: Repro, verdict: Verdict) -> None:
        """Go on from a best of an earlier search, if it is one."""
        if self.failure.shown_by(verdict) and size_of(best) < self.best_size:
            self.best, self.best_verdict, self.best_size = best, verdict, size_of(best)

    def _adopt(self, candidate: Repro) -> None:
        verdict = self.verdict_on(candidate)
        assert verdict is not None
        self.best = replace(candidate, expected=self.failure.signature)
        self.best_verdict, self.best_size = verdict, size_of(candidate)
        self._count(adopted=1)
        self.store.keep_best(self.best, verdict)
        self._tell()

    def _first_of(self, candidates: Sequence[Repro | None]) -> int | None:
        """The first that fails of a few, which are asked at the same time."""
        failing: dict[int, bool] = {}
        open_: dict[int, tuple[str, Repro]] = {}
        for index, candidate in enumerate(candidates):
            if candidate is None:
                failing[index] = False
                continue
            key = canonical_key(candidate)
            known = self.store.verdict(key)
            if known is not None:
                self._count(known=1)
                failing[index] = self.failure.shown_by(known)
            elif self._is_invalid(candidate):
                self._count(rejected=1)
                failing[index] = False
            elif any(key == other for other, _ in open_.values()):
                failing[index] = False  # the same as one before it, which answers for both
            else:
                open_[index] = (key, candidate)
            if failing.get(index) and all(known is not None for known in failing.values()) and not open_:
                return index
        for _ in range(self.repeats):
            asked = [index for index in open_ if not failing.get(index)]
            for index, verdict in self._ask([open_[index][1] for index in asked]):
                key, candidate = open_[asked[index]]
                failing[asked[index]] = self._take(key, candidate, verdict)
                found = _decided(failing, len(candidates))
                if found is not None and self.repeats == 1:
                    return found
            if not any(not failing.get(index) for index in open_):
                break
        return next((index for index in range(len(candidates)) if failing.get(index)), None)

    def _ask(self, candidates: Sequence[Repro]) -> Iterator[tuple[int, Verdict]]:
        if not candidates:
            return
        self._stop_if_late()
        self._count(queries=len(candidates))
        self._tell()
        with closing(self.oracle.judge(candidates)) as answers:  # type: ignore[type-var]
            for index, verdict in answers:
                yield index, verdict
                self._tell()
                self._stop_if_late()

    def _take(self, key: str, candidate: Repro, verdict: Verdict) -> bool:
        """Remember a verdict. A pass of a flaky failure is remembered too: it was asked often enough."""
        shown = self.failure.shown_by(verdict)
        self.store.remember(key, verdict, pass_name=self.pass_name)
        if verdict.fails and not shown:
            self.store.also_seen(candidate, verdict)
        return shown

    def _is_invalid(self, candidate: Repro) -> bool:
        """Whether eager would raise, as far as that can be told without running it."""
        if self.failure.signature.kind is Kind.MISSING_ERROR:
            return False  # eager is meant to raise
        return bool(why_invalid(candidate))

    def _stop_if_late(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise SearchStopped("the time is up")

    def _count(self, **more: float) -> None:
        row = self.statistics.get(self.pass_name, Statistics())
        changed = {name: getattr(row, name) + value for name, value in more.items()}
        self.statistics[self.pass_name] = replace(row, **changed)  # type: ignore[arg-type]

    def _tell(self) -> None:
        rows = self.statistics.values()
        self.notify(
            Progress(
                pass_name=self.pass_name,
                start=self.start_size,
                best=self.best_size,
                queries=sum(row.queries for row in rows),
                known=sum(row.known for row in rows),
                seconds=time.monotonic() - self.began,
            )
        )


def _decided(failing: dict[int, bool], count: int) -> int | None:
    """The first that fails, once everything before it is known to pass."""
    for index in range(count):
        if index not in failing:
            return None
        if failing[index]:
            return index
    return None
