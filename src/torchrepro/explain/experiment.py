"""Laboratory: asks what became of the failure in variations of a repro, in as few compilations as it can.

There are three ways, and a variation is asked about in the cheapest that can answer. Inputs with other values
need no new compilation at all. Wrong values can be told apart among many copies in one graph (`together.py`).
An error, a crash or a hang takes everything beside it along, so there each variation is asked about alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from torchrepro.edit.held_tensors import count_elements
from torchrepro.edit.validity import why_invalid
from torchrepro.engine.canonical_key import canonical_key
from torchrepro.engine.failure import Failure
from torchrepro.engine.oracle import Oracle
from torchrepro.engine.store import MemoryStore, Store
from torchrepro.explain.batched_graph import can_stand_together, together
from torchrepro.explain.variations import Outcome, Trial, Variation
from torchrepro.nouns.explanation import Area
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Kind, Verdict

JudgeMany = Callable[[Repro, Sequence[tuple[object, ...]]], Sequence[Verdict]]
"""A verdict on a repro for each set of inputs, from one compilation."""

_TOGETHER = 32
"""Copies in one graph. Each costs 20 ms of compilation; a single one that raises costs a second attempt."""
_ELEMENTS = 1 << 22
_TELLS_VALUES_APART = (Kind.MISMATCH, Kind.NON_FINITE)
_DIES = (Kind.CRASH, Kind.HANG, Kind.OUT_OF_MEMORY)


@dataclass(frozen=True, slots=True)
class Budget:
    """What an explanation may cost. Nothing is begun that exceeds it; what is under way is finished."""

    queries: int = 16
    seconds: float = 30.0

    @classmethod
    def for_kind(cls, kind: Kind) -> Budget:
        """A hang costs its whole time limit each time."""
        return cls(queries=6, seconds=60.0) if kind is Kind.HANG else cls()


class Laboratory:
    """Where variations are tried; remembers every trial, and what it has cost."""

    def __init__(
        self,
        repro: Repro,
        verdict: Verdict,
        oracle: Oracle,
        *,
        failure: Failure | None = None,
        judge_many: JudgeMany | None = None,
        store: Store | None = None,
        budget: Budget,
        repeats: int = 1,
    ) -> None:
        self.repro = repro
        self.failure = failure or Failure.of(verdict)
        self._compares = verdict.comparison is not None
        self.trials: list[Trial] = []
        self.queries = 0
        self._oracle = oracle
        self._judge_many = judge_many
        self._store = store if store is not None else MemoryStore()
        self._budget = budget
        self._repeats = repeats
        self._began = time.monotonic()
        self._reserved = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def left(self) -> int:
        """Queries that may still be made. Those that were kept back have half as much time again."""
        limit = self._budget.seconds * (1.0 if self._reserved else 1.5)
        in_time = self.seconds < limit
        return max(0, self._budget.queries - self._reserved - self.queries) if in_time else 0

    def reserve(self, queries: int) -> None:
        """Keep so many queries back until something else is reserved."""
        self._reserved = min(queries, self._budget.queries // 2)

    @property
    def tells_values_apart(self) -> bool:
        """Whether one compilation can answer for many copies of the graph."""
        wrong_values = self._compares and self.failure.signature.kind in _TELLS_VALUES_APART
        return wrong_values and can_stand_together(self.repro)

    @property
    def is_compiled_once(self) -> bool:
        """Whether other values are free: what shows the failure has been compiled, and lives on."""
        kind = self.failure.signature.kind
        return (
            self._survives and kind is not Kind.COMPILE_ERROR and self.repro.place is not Place.BEFORE_CAPTURE
        )

    @property
    def _survives(self) -> bool:
        return self._judge_many is not None and self.failure.signature.kind not in _DIES

    def try_values(self, variations: Sequence[Variation]) -> list[Trial]:
        """Variations of the inputs' values alone: all of them for one compilation."""
        if not variations or not self.left:
            return []
        if self._judge_many is None or not self._survives:
            return self.try_each(variations)
        found = [Outcome.UNKNOWN] * (1 + len(variations))
        for _ in range(self._repeats):
            # The repro as it is goes along: if it does not fail in this company, the others say nothing.
            sets = [self.repro.inputs, *(variation.repro.inputs for variation in variations)]
            self.queries += 1
            verdicts = self._judge_many(self.repro, sets)
            found = [_worse(old, self._outcome(new)) for old, new in zip(found, verdicts, strict=True)]
        if found[0] is not Outcome.FAILS:
            return []
        return self._keep(variations, found[1:], alone=False)

    def try_together(self, variations: Sequence[Variation]) -> list[Trial] | None:
        """Variations beside one another in one graph; None where the failure does not show in company."""
        valid = [variation for variation in variations if self._is_valid(variation)]
        trials: list[Trial] = []
        for batch in self._batches(valid):
            found = self._try_together(batch)
            if found is None:
                return trials or None
            trials += found
        return trials

    def _batches(self, variations: Sequence[Variation]) -> list[list[Variation]]:
        """Parts that are not too many for one graph, nor too large for memory."""
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

    def try_each(self, variations: Sequence[Variation]) -> list[Trial]:
        """Variations one by one, several at a time, as far as the budget goes."""
        trials: list[Trial] = []
        waiting = [variation for variation in variations if self._is_valid(variation)]
        while waiting:
            known = [(variation, self._known(variation.repro)) for variation in waiting]
            for variation, outcome in known:
                if outcome is not None:
                    trials += self._keep([variation], [outcome], alone=True)
            waiting = [variation for variation, outcome in known if outcome is None]
            asked = waiting[: min(max(1, self._oracle.workers), self.left)]
            if not asked:
                break
            trials += self._keep(asked, self._ask([variation.repro for variation in asked]), alone=True)
            waiting = waiting[len(asked) :]
        return trials

    def _try_together(self, variations: Sequence[Variation]) -> list[Trial] | None:
        if not variations or not self.left:
            return []
        whole = together([self.repro, *(variation.repro for variation in variations)])
        outcomes = [Outcome.UNKNOWN] * whole.count
        for _ in range(self._repeats):
            self.queries += 1
            verdict = self._verdicts([whole.repro])[0]
            verdicts = whole.verdicts(verdict)
            if verdicts is None:
                # One of them raises. The others are asked again without it; it is not asked alone.
                return self._in_halves(variations)
            outcomes = [_worse(old, self._outcome(new)) for old, new in zip(outcomes, verdicts, strict=True)]
        if outcomes[0] is not Outcome.FAILS:
            return None
        return self._keep(variations, outcomes[1:], alone=False)

    def _in_halves(self, variations: Sequence[Variation]) -> list[Trial]:
        if len(variations) < 2:
            return []
        half = len(variations) // 2
        parts = (variations[:half], variations[half:])
        return [trial for part in parts for trial in self._try_together(part) or []]

    def _ask(self, repros: Sequence[Repro]) -> list[Outcome]:
        outcomes = [Outcome.UNKNOWN] * len(repros)
        telling: dict[int, Verdict] = {}
        for _ in range(self._repeats):
            open_ = [index for index, outcome in enumerate(outcomes) if outcome is not Outcome.FAILS]
            self.queries += len(open_)
            for index, verdict in zip(open_, self._verdicts([repros[i] for i in open_]), strict=True):
                outcome = self._outcome(verdict)
                if index not in telling or _worse(outcomes[index], outcome) is not outcomes[index]:
                    telling[index] = verdict
                outcomes[index] = _worse(outcomes[index], outcome)
                if outcome is Outcome.OTHERWISE:
                    self._store.also_seen(repros[index], verdict)
        # Only now: an end in between must not leave behind that it passes, after one run of several.
        for index, verdict in telling.items():
            self._store.remember(canonical_key(repros[index]), verdict, pass_name="explain")
        return outcomes

    def _verdicts(self, repros: Sequence[Repro]) -> list[Verdict]:
        found: dict[int, Verdict] = {}
        with closing(self._oracle.judge(repros)) as answers:  # type: ignore[type-var]
            for index, verdict in answers:
                found[index] = verdict
        return [found[index] for index in range(len(repros))]

    def _known(self, repro: Repro) -> Outcome | None:
        verdict = self._store.verdict(canonical_key(repro))
        # The search may have seen only that it does not fail as the original does (`engine/stop_early.py`).
        if verdict is None or verdict.kind is Kind.NOT_COMPARABLE:
            return None
        return self._outcome(verdict)

    def _outcome(self, verdict: Verdict) -> Outcome:
        return Outcome.of(verdict, self.failure)

    def _is_valid(self, variation: Variation) -> bool:
        """Whether eager would run it, as far as that can be told; sizes have been chosen so that it does."""
        if variation.area is Area.SIZES or self.repro.place is Place.BEFORE_CAPTURE:
            return True
        return self.failure.signature.kind is Kind.MISSING_ERROR or not why_invalid(variation.repro)

    def _keep(
        self, variations: Sequence[Variation], outcomes: Sequence[Outcome], *, alone: bool
    ) -> list[Trial]:
        trials = [Trial(v, outcome, alone) for v, outcome in zip(variations, outcomes, strict=True)]
        self.trials += trials
        return trials


_ORDER = (Outcome.UNKNOWN, Outcome.PASSES, Outcome.OTHERWISE, Outcome.FAILS)


def _worse(old: Outcome, new: Outcome) -> Outcome:
    """Of two runs of the same, what counts: a failure that shows once in a while is there."""
    return max(old, new, key=_ORDER.index)
