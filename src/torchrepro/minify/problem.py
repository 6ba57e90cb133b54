"""The problem that passes work on: the best repro so far, and queries whether a candidate fails as well.

A pass never runs anything and never judges. It proposes candidates, boldest first; the problem rejects what
cannot run, makes `Queries` for the rest, and adopts what fails as the original does and is smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from torchrepro.cut.batches import can_be_joined, joined
from torchrepro.cut.record_values import Recording
from torchrepro.edit.dimensions import DimensionTable, dimension_table
from torchrepro.edit.validity import why_invalid
from torchrepro.engine.baseline import LONG, RUNS, Original
from torchrepro.engine.canonical_key import canonical_key
from torchrepro.engine.queries import Answer, Queries
from torchrepro.engine.subsets import Nearest, minimal_subset
from torchrepro.minify.order import Size, size_of
from torchrepro.nouns.errors import HarnessError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import Adoption
from torchrepro.nouns.verdict import Kind, Verdict

Item = TypeVar("Item")


@dataclass(eq=False)
class Problem:
    """A failing repro on its way to the smallest one."""

    queries: Queries
    notify: Callable[[Problem], None] = lambda problem: None
    """Called on progress, to show it to a user."""
    history: list[Adoption] = field(default_factory=list)
    """Each best so far; continues that of an interrupted search where it is given."""
    on_adopted: Callable[[Adoption], None] = lambda adoption: None
    establish: Callable[[], Original] | None = None
    """Runs the original, if only its record says that it fails; raises if it does not fail."""
    start: tuple[Repro, Verdict] | None = None
    """Search in this repro, which is taken to fail in this way, and do not store its best (`search_in`)."""

    def __post_init__(self) -> None:
        self.best, self.best_verdict = self.start or (self.queries.original, self.queries.verdict)
        self.original, self.failure = self.best, self.queries.failure
        self.start_size = self.best_size = size_of(self.original)
        self._recorded: tuple[Repro, Recording | None] | None = None
        self._table: DimensionTable | None = None
        self._invalid: dict[str, bool] = {}
        self._healthy_together: set[str] = set()
        self._failed_together: set[str] = set()
        self._before = self.history[-1] if self.history else Adoption(0, 0.0, 0, 0, 0)

    # What passes use.

    def fails(self, candidate: Repro | None) -> bool:
        """Return whether a candidate fails as the original does; False for None, which could not be built."""
        return self.first_failing([candidate]) is not None

    def accept(self, candidate: Repro | None) -> bool:
        """Make a candidate the best if it fails as the original does and is smaller than the best."""
        return self.accept_first([candidate]) is not None

    def accept_first(self, candidates: Sequence[Repro | None]) -> int | None:
        """Adopt the first that fails and is smaller than the best; return its index. Boldest first."""
        sizes = [None if candidate is None else size_of(candidate) for candidate in candidates]
        smaller = [
            candidate if size is not None and size < self.best_size else None
            for candidate, size in zip(candidates, sizes, strict=True)
        ]
        found = self._first(smaller, guesses=True)
        if found is None:
            return None
        size = sizes[found.index]
        assert size is not None
        self._adopt(found.repro, size, found.verdict)
        return found.index

    def first_failing(self, candidates: Sequence[Repro | None], *, in_order: bool = True) -> int | None:
        """Return the index of the first that fails, in the order given; later ones may not have been run.

        Unless `in_order`, it is the first that was seen to fail.
        """
        found = self._first(candidates, in_order=in_order)
        return None if found is None else found.index

    def minimise(
        self,
        items: Sequence[Item],
        build: Callable[[Sequence[Item]], Repro | None],
        *,
        nearest: Nearest[Item] | None = None,
        suspected: Collection[Item] = (),
    ) -> list[Item]:
        """Return the fewest items for which `build(items)` still fails, and adopt that if it is smaller.

        `build` takes a part of the items, in their order, and returns None where no repro can be built.
        The result is 1-minimal: without any single one of its items it does not fail.
        """

        def fails_first(parts: Sequence[Sequence[Item]]) -> int | None:
            return self.first_failing([build(part) for part in parts])

        kept = minimal_subset(items, fails_first, width=self.workers, nearest=nearest, suspected=suspected)
        if len(kept) < len(items):
            self.accept(build(kept))
        return kept

    def leave_out(
        self, items: Sequence[Item], without: Callable[[Repro, list[Item]], Repro | None]
    ) -> list[Item]:
        """Remove as many items as possible from the best, by `without(best, gone)`; return the others."""
        best = self.best
        return self.minimise(items, lambda kept: without(best, [item for item in items if item not in kept]))

    def recording(self) -> Recording | None:
        """Return the values inside the best, from an eager run; None if they cannot be recorded."""
        if self._recorded is None or self._recorded[0] is not self.best:
            self._recorded = (self.best, self.queries.observer.record(self.best))
        return self._recorded[1]

    def dimensions(self) -> DimensionTable:
        """Return the dimensions of the best: sizes that can only change together are one."""
        if self._table is None or self._table.repro is not self.best:
            self._table = dimension_table(self.best, self.best_verdict)
        return self._table

    def rounds(self, repros: Sequence[Repro]) -> Sequence[Sequence[Verdict] | None]:
        """Return a verdict for each set of inputs of each compilation (`Queries.rounds_of_each`)."""
        self._tell()
        return self.queries.rounds_of_each(repros)

    def fail_together(self, candidates: Sequence[Repro]) -> list[bool] | None:
        """Return which candidates fail where all are parts of one graph: one query.

        None if one verdict cannot tell them apart, or the best itself does not fail in that graph. What fails
        there is queried alone before it is adopted; what does not fail there is not queried again.
        """
        compared = self.values_are_wrong and self.best_verdict.comparison is not None
        if not compared or len(candidates) < 2 or not all(map(can_be_joined, candidates)):
            return None
        control = replace(candidates[0], graph=self.best.graph, inputs=self.best.inputs)
        parts = joined([control, *candidates])
        verdicts = parts.verdicts(self.queries.run_once(parts.repro))
        if verdicts is None:
            return None
        as_before, *fails = map(self.failure.shown_by, verdicts)
        if not as_before:
            return None
        if self.queries.repeats == 1:
            healthy = (candidate for candidate, failed in zip(candidates, fails, strict=True) if not failed)
            self._healthy_together.update(map(canonical_key, healthy))
        failing = (candidate for candidate, failed in zip(candidates, fails, strict=True) if failed)
        self._failed_together.update(map(canonical_key, failing))
        return fails

    def verdict_on(self, candidate: Repro) -> Verdict | None:
        """Return the verdict on a candidate that has been queried; None if it has not."""
        return self.queries.known(candidate)

    @property
    def values_are_wrong(self) -> bool:
        """Whether the failure is about values: one compilation then tells which of many are wrong."""
        return self.failure.signature.kind in (Kind.MISMATCH, Kind.NON_FINITE)

    @property
    def workers(self) -> int:
        """How many candidates are run at a time: query as many together."""
        return self.queries.workers

    def search_in(self, larger: Repro) -> Problem:
        """Return the problem of a repro larger than the best that is taken to fail as well.

        It uses the same `Queries`, and counts under the same pass. Its best becomes this problem's best only
        if this problem accepts it.
        """
        return Problem(self.queries, lambda side: self.notify(self), start=(larger, self.best_verdict))

    # What the search uses.

    @contextmanager
    def running(self, pass_name: str) -> Iterator[None]:
        """Count queries in the body under a pass."""
        with self.queries.labelled(pass_name):
            yield

    def confirm(self) -> None:
        """Run the original if nothing smaller has failed and only its record says that it fails."""
        establish, self.establish = self.establish, None
        if establish is None or self.best is not self.original:
            return
        with self.running("original"):
            self._expect(establish())

    def measure_flakiness(self, runs: int = RUNS) -> None:
        """Run the best `runs` times; if it passes in some, repeat candidates more often from now on.

        That it has failed alone is one of these runs, that it has failed next to others as well is another.
        """
        if self.queries.repeats > 1 or self.best_verdict.seconds > LONG:
            return
        runs -= canonical_key(self.best) in self._failed_together
        with self.running("flakiness"):
            measured = self.queries.measured(self.best, self.best_verdict, runs)
        if measured.repeats > 1:
            self._expect(replace(measured, verdict=self.queries.verdict))

    def _expect(self, baseline: Original) -> None:
        self.queries.expect(baseline)
        self.failure = self.queries.failure
        if self.best is self.original:
            self.best_verdict = baseline.verdict

    def resume_from(self, best: Repro, verdict: Verdict) -> None:
        """Continue from the best of an earlier search, if it shows the failure and is smaller."""
        if self.failure.shown_by(verdict) and size_of(best) < self.best_size:
            self.best, self.best_verdict, self.best_size = best, verdict, size_of(best)

    def restart_from(self, original: Repro) -> bool:
        """Start over with another way to run the original, if it fails in that way as well."""
        with self.running("restart"):
            found = self._first([original])
        if found is None:
            return False
        self.best, self.best_verdict = replace(original, expected=self.failure.signature), found.verdict
        self.best_size = size_of(original)
        return True

    def _adopt(self, candidate: Repro, size: Size, verdict: Verdict) -> None:
        if not self.failure.shown_by(verdict) or size >= self.best_size:
            raise HarnessError(f"{self.queries.label} adopted a candidate that is no better: {verdict}")
        self.best = replace(candidate, expected=self.failure.signature)
        self.best_verdict, self.best_size = verdict, size
        self.queries.count(adopted=1)
        adoption = Adoption(
            self._before.query + self.queries.asked,
            self._before.seconds + self.queries.seconds,
            *size.counts,
            self.queries.label,
        )
        self.history.append(adoption)
        self.on_adopted(adoption)
        if self.start is None:
            self.queries.store.keep_best(self.best, verdict)
        self._tell()

    def _first(
        self, candidates: Sequence[Repro | None], *, guesses: bool = False, in_order: bool = True
    ) -> Answer | None:
        return self.queries.first_failing(
            candidates,
            is_hopeless=self._is_hopeless,
            on_answer=self._tell,
            guesses=guesses,
            in_order=in_order,
        )

    def _is_hopeless(self, candidate: Repro, key: str) -> bool:
        """Return whether it was healthy next to others, or eager would raise, as far as fakes tell."""
        if key in self._healthy_together:
            return True
        if self.failure.signature.kind is Kind.MISSING_ERROR:
            return False  # eager is meant to raise
        if key not in self._invalid:
            # The original, which may be large, is run on fakes only if a candidate does not pass.
            self._invalid[key] = bool(why_invalid(candidate)) and self._can_tell
        return self._invalid[key]

    @cached_property
    def _can_tell(self) -> bool:
        """Whether runs on fakes can be trusted here: the original, which eager runs, must pass."""
        return not why_invalid(self.original)

    def _tell(self) -> None:
        self.notify(self)
