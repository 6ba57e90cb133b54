"""Problem: what a pass sees. The best repro so far, and answers to the question "does this one fail as well?"

A pass never runs anything and never judges. It proposes candidates, best first, and the problem answers from
what is known, rejects what cannot run, asks the oracle about the rest, several at a time, and adopts what
fails as the original does and is smaller.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from torchrepro.cut.record_values import Recording
from torchrepro.edit.validity import why_invalid
from torchrepro.engine.canonical_key import canonical_key
from torchrepro.engine.failure import Failure
from torchrepro.engine.oracle import ObserveHere, Observer, Oracle
from torchrepro.engine.query import Question, first_to_fail
from torchrepro.engine.store import MemoryStore, Store
from torchrepro.engine.subsets import Nearest, minimal_subset
from torchrepro.minify.order import Size, size_of
from torchrepro.nouns.errors import HarnessError, SearchStopped
from torchrepro.nouns.minified import Adoption, Statistics
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict

Item = TypeVar("Item")


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
    observer: Observer = field(default_factory=ObserveHere)
    notify: Callable[[Progress], None] = lambda progress: None
    history: list[Adoption] = field(default_factory=list)
    """Each best on the way; what an interrupted search has left may be given, and is gone on with."""
    on_adopted: Callable[[Adoption], None] = lambda adoption: None

    def __post_init__(self) -> None:
        self.failure = Failure.of(self.original_verdict)
        self.best, self.best_verdict = self.original, self.original_verdict
        self.start_size = self.best_size = size_of(self.original)
        self.statistics: dict[str, Statistics] = {}
        self.pass_name = ""
        self._recorded: tuple[Repro, Recording | None] | None = None
        self._invalid: dict[str, bool] = {}
        self._before = self.history[-1] if self.history else Adoption(0, 0.0, 0, 0, 0)
        self.began = time.monotonic()
        self.store.remember(canonical_key(self.original), self.original_verdict, pass_name="original")

    # What passes use.

    def fails(self, candidate: Repro | None) -> bool:
        """Whether a candidate fails as the original does. None stands for one that could not be built."""
        return self.first_failing([candidate]) is not None

    def accept(self, candidate: Repro | None) -> bool:
        """Make a candidate the best if it fails as the original does and is smaller than the best."""
        return self.accept_first([candidate]) is not None

    def accept_first(self, candidates: Sequence[Repro | None]) -> int | None:
        """Adopt the first that fails and is smaller than the best; its index. Give the boldest one first."""
        sizes = [None if candidate is None else size_of(candidate) for candidate in candidates]
        smaller = [
            candidate if size is not None and size < self.best_size else None
            for candidate, size in zip(candidates, sizes, strict=True)
        ]
        found = self._first(smaller)
        if found is None:
            return None
        size = sizes[found.index]
        assert size is not None
        assert found.verdict is not None
        self._adopt(found.candidate, size, found.verdict)
        return found.index

    def first_failing(self, candidates: Sequence[Repro | None]) -> int | None:
        """The index of the first that fails, in the order given; those after it may not have been asked."""
        found = self._first(candidates)
        return None if found is None else found.index

    def minimise(
        self,
        items: Sequence[Item],
        build: Callable[[Sequence[Item]], Repro | None],
        *,
        nearest: Nearest[Item] | None = None,
        suspected: Collection[Item] = (),
    ) -> list[Item]:
        """The fewest items for which `build(items)` still fails, and make that the best if it is smaller.

        `build` is given a part of the items, in their order, and returns None where that makes no repro.
        The answer is 1-minimal: without any single one of its items it does not fail.
        """

        def fails_first(parts: Sequence[Sequence[Item]]) -> int | None:
            return self.first_failing([build(part) for part in parts])

        kept = minimal_subset(items, fails_first, width=self._workers, nearest=nearest, suspected=suspected)
        if len(kept) < len(items):
            self.accept(build(kept))
        return kept

    def recording(self) -> Recording | None:
        """The values inside the best, from an eager run; None where it cannot be had."""
        if self._recorded is None or self._recorded[0] is not self.best:
            self._recorded = (self.best, self.observer.record(self.best))
        return self._recorded[1]

    def rounds(self, repro: Repro) -> Sequence[Verdict]:
        """A verdict for each set of inputs of one compilation (`cut/batched_inputs.py`): one query."""
        self._stop_if_late()
        self._count(queries=1)
        self._tell()
        return self.observer.rounds(repro)

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

    def restart_from(self, original: Repro) -> bool:
        """Begin again with another way to run the original, if it fails in that way as well."""
        with self.running("restart"):
            found = self._first([original])
        if found is None or found.verdict is None:
            return False
        self.best, self.best_verdict = replace(original, expected=self.failure.signature), found.verdict
        self.best_size = size_of(original)
        return True

    def _adopt(self, candidate: Repro, size: Size, verdict: Verdict) -> None:
        if not self.failure.shown_by(verdict) or size >= self.best_size:
            raise HarnessError(f"a candidate of {self.pass_name} was taken that is no better: {verdict}")
        self.best = replace(candidate, expected=self.failure.signature)
        self.best_verdict, self.best_size = verdict, size
        self._count(adopted=1)
        self._note_adoption(size)
        self.store.keep_best(self.best, verdict)
        self._tell()

    def _note_adoption(self, size: Size) -> None:
        seconds = self._before.seconds + time.monotonic() - self.began
        query = self._before.query + self.queries
        adoption = Adoption(query, seconds, size.ops, size.inputs, size.elements, self.pass_name)
        self.history.append(adoption)
        self.on_adopted(adoption)

    def _first(self, candidates: Sequence[Repro | None]) -> Question | None:
        """The first that fails. As many are asked at the same time as there are workers."""
        for batch in self._batches(candidates):
            found = first_to_fail(
                batch, self.failure, self._ask, workers=self._workers, on_decided=self._remember
            )
            if found is not None:
                return found
        return None

    def _batches(self, candidates: Sequence[Repro | None]) -> Iterator[list[Question]]:
        """Questions to ask together, answered ones in between; nothing is needed after one that fails."""
        batch: list[Question] = []
        met: set[str] = set()
        for index, candidate in enumerate(candidates):
            if candidate is None:
                continue
            question = self._question(index, candidate)
            if question.key in met:
                continue  # the same as one before it, which answers for both
            met.add(question.key)
            batch.append(question)
            if question.fails or sum(each.is_open for each in batch) == self._workers:
                yield batch
                batch = []
        yield batch

    def _question(self, index: int, candidate: Repro) -> Question:
        """A question, answered already where the verdict is known or the candidate cannot run."""
        key = canonical_key(candidate)
        known = self.store.verdict(key)
        if known is not None:
            self._count(known=1)
            return Question(index, candidate, key, 0, known, self.failure.shown_by(known))
        if self._is_invalid(candidate, key):
            self._count(rejected=1)
            return Question(index, candidate, key, 0)
        return Question(index, candidate, key, self.repeats)

    def _remember(self, question: Question) -> None:
        """A pass is known only after all of its runs: a kill in between must not leave half of it behind."""
        assert question.verdict is not None
        self.store.remember(question.key, question.verdict, pass_name=self.pass_name)

    @property
    def _workers(self) -> int:
        return max(1, self.oracle.workers)

    def _ask(self, candidates: Sequence[Repro]) -> Generator[tuple[int, Verdict], None, None]:
        self._stop_if_late()
        self._count(queries=len(candidates))
        self._tell()
        with closing(self.oracle.judge(candidates)) as answers:  # type: ignore[type-var]
            for index, verdict in answers:
                if verdict.fails and not self.failure.shown_by(verdict):
                    self.store.also_seen(candidates[index], verdict)
                yield index, verdict
                self._tell()
                self._stop_if_late()

    def _is_invalid(self, candidate: Repro, key: str) -> bool:
        """Whether eager would raise, as far as that can be told without running it."""
        if self.failure.signature.kind is Kind.MISSING_ERROR:
            return False  # eager is meant to raise
        if key not in self._invalid:
            self._invalid[key] = self._can_tell and bool(why_invalid(candidate))
        return self._invalid[key]

    @cached_property
    def _can_tell(self) -> bool:
        """Whether runs without data are to be believed here: the original, which eager runs, must pass."""
        return not why_invalid(self.original)

    def _stop_if_late(self) -> None:
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise SearchStopped("the time is up")

    def _count(self, **more: float) -> None:
        row = self.statistics.get(self.pass_name, Statistics())
        changed = {name: getattr(row, name) + value for name, value in more.items()}
        self.statistics[self.pass_name] = replace(row, **changed)

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
