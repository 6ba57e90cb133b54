"""Experiment: try variations of a repro in as few compilations as possible.

A variation is tried in the cheapest of three ways. Inputs with other values need no new compilation at all
(`cut/batches.py`). Wrong values can be told apart among many copies in one graph (`cut/batches.py`). An
error, a crash or a hang hides what else is in the graph, so there each variation is tried alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchrepro.cut.batches import can_be_joined, joined
from torchrepro.edit.held_tensors import count_elements
from torchrepro.edit.validity import why_invalid
from torchrepro.engine.queries import Queries
from torchrepro.explain.subject import Outcome, Trial, Variation
from torchrepro.nouns.repro import Place
from torchrepro.nouns.results import Area
from torchrepro.nouns.verdict import Kind, Verdict

_TOGETHER = 32
"""Copies in one graph. Each takes 20 ms to compile; a single one that raises costs a second attempt."""
_ELEMENTS = 1 << 22
_OF_VALUES = (Kind.MISMATCH, Kind.NON_FINITE)
_DIES = (Kind.CRASH, Kind.HANG, Kind.OUT_OF_MEMORY)
_ORDER = (Outcome.UNKNOWN, Outcome.PASSES, Outcome.OTHERWISE, Outcome.FAILS)


@dataclass(frozen=True, slots=True)
class Budget:
    """The cost limit of an explanation. No query is started above it; running ones finish."""

    queries: int = 16
    seconds: float = 30.0

    @classmethod
    def for_kind(cls, kind: Kind) -> Budget:
        """Return the budget for a kind of failure: a hang takes its whole timeout each time."""
        return cls(queries=6, seconds=60.0) if kind is Kind.HANG else cls()


class Experiment:
    """Tries variations of the repro of `queries`; remembers every trial, and what it has cost."""

    def __init__(self, queries: Queries, budget: Budget) -> None:
        self.queries = queries
        self.repro = queries.original
        self.failure, self._kind = queries.failure, queries.failure.signature.kind
        self.trials: list[Trial] = []
        self._budget = budget
        self._reserved = 0

    @property
    def left(self) -> int:
        """How many queries may still be made. Reserved ones have a time limit half as long again."""
        limit = self._budget.seconds * (1.0 if self._reserved else 1.5)
        in_time = self.queries.seconds < limit
        return max(0, self._budget.queries - self._reserved - self.queries.asked) if in_time else 0

    def reserve(self, queries: int) -> None:
        """Reserve so many queries; replaces the former reservation."""
        self._reserved = min(queries, self._budget.queries // 2)

    @property
    def tells_values_apart(self) -> bool:
        """Whether one compilation can give the outcomes of many copies of the graph."""
        compared = self.queries.verdict.comparison is not None
        return compared and self._kind in _OF_VALUES and can_be_joined(self.repro)

    @property
    def is_compiled_once(self) -> bool:
        """Whether other values need no compilation: the failing code compiles, and the process survives."""
        fatal = self._kind in (*_DIES, Kind.COMPILE_ERROR)
        return not fatal and self.repro.place is not Place.BEFORE_CAPTURE

    def try_values(self, variations: Sequence[Variation]) -> list[Trial]:
        """Try variations of the inputs' values alone, all of them with one compilation."""
        if not variations or not self.left:
            return []
        if self._kind in _DIES:
            return self.try_each(variations)
        sets = [self.repro.inputs, *(variation.repro.inputs for variation in variations)]
        return self._repeated(variations, lambda: self._judged_on(sets)) or []

    def _judged_on(self, sets: Sequence[tuple[Any, ...]]) -> list[Verdict]:
        """Judge one compilation on each set of inputs; if the process dies, each half in its own."""
        own = len(self.repro.earlier)
        batch = replace(self.repro, inputs=sets[0], earlier=(*self.repro.earlier, *sets[1:]))
        verdicts = self.queries.rounds(batch, own=own, seconds=None)
        if len(verdicts) == len(sets):
            return list(verdicts)
        if len(sets) == 1:
            return [self.queries.run_once(replace(self.repro, inputs=sets[0]))]
        half = len(sets) // 2
        return [*self._judged_on(sets[:half]), *self._judged_on(sets[half:])]

    def try_together(self, variations: Sequence[Variation]) -> list[Trial] | None:
        """Try variations in one graph; return None if the baseline passes inside the batch."""
        trials: list[Trial] = []
        for batch in self._batches([variation for variation in variations if self._is_valid(variation)]):
            found = self._try_together(batch)
            if found is None:
                return trials or None
            trials += found
        return trials

    def _batches(self, variations: Sequence[Variation]) -> list[list[Variation]]:
        """Split variations into batches that are small enough for one graph and for memory."""
        limit = max(_ELEMENTS, 4 * count_elements(self.repro))
        batches: list[list[Variation]] = []
        held = 0
        for variation in variations:
            elements = count_elements(variation.repro)
            if not batches or len(batches[-1]) == _TOGETHER or held + elements > limit:
                batches.append([])
                held = 0
            batches[-1].append(variation)
            held += elements
        return batches

    def _try_together(self, variations: Sequence[Variation]) -> list[Trial] | None:
        if not variations or not self.left:
            return []
        whole = joined([self.repro, *(variation.repro for variation in variations)])
        try:
            return self._repeated(variations, lambda: whole.verdicts(self.queries.run_once(whole.repro)))
        except _OneRaises:
            # Retry the halves; a single variation that raises is dropped.
            half = len(variations) // 2
            parts = (variations[:half], variations[half:]) if half else ()
            return [trial for part in parts for trial in self._try_together(part) or []]

    def try_each(self, variations: Sequence[Variation]) -> list[Trial]:
        """Try variations in a compilation each, several at a time, as far as the budget goes."""
        trials: list[Trial] = []
        waiting = [variation for variation in variations if self._is_valid(variation)]
        while waiting:
            known = [variation for variation in waiting if self.queries.known(variation.repro) is not None]
            unknown = [variation for variation in waiting if variation not in known]
            asked = [*known, *unknown[: min(self.queries.workers, self.left)]]
            if not asked:
                break
            verdicts = self.queries.verdicts([variation.repro for variation in asked])
            outcomes = [Outcome.of(verdict, self.failure) for verdict in verdicts]
            trials += self._keep(asked, outcomes, alone=True)
            waiting = [variation for variation in waiting if variation not in asked]
        return trials

    def _repeated(
        self, variations: Sequence[Variation], ask: Callable[[], Sequence[Verdict] | None]
    ) -> list[Trial] | None:
        """Try the baseline and the variations together, as often as a flaky failure requires.

        A variation fails if it fails once. None if the baseline passes inside the batch: its results are
        discarded.
        """
        outcomes = [Outcome.UNKNOWN] * (1 + len(variations))
        for _ in range(self.queries.repeats):
            verdicts = ask()
            if verdicts is None:
                raise _OneRaises
            new = [Outcome.of(verdict, self.failure) for verdict in verdicts]
            outcomes = [max(pair, key=_ORDER.index) for pair in zip(outcomes, new, strict=True)]
        if outcomes[0] is not Outcome.FAILS:
            return None
        return self._keep(variations, outcomes[1:], alone=False)

    def _is_valid(self, variation: Variation) -> bool:
        """Return whether eager would run it, as far as is known; sizes have been checked already."""
        if variation.area is Area.SIZES or self.repro.place is Place.BEFORE_CAPTURE:
            return True
        return self._kind is Kind.MISSING_ERROR or not why_invalid(variation.repro)

    def _keep(
        self, variations: Sequence[Variation], outcomes: Sequence[Outcome], *, alone: bool
    ) -> list[Trial]:
        trials = [Trial(v, outcome, alone) for v, outcome in zip(variations, outcomes, strict=True)]
        self.trials += trials
        return trials


class _OneRaises(Exception):
    """One of the variations in a graph raises, so that the outcomes of the others are unknown."""
