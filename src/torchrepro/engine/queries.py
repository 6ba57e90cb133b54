"""Query verdicts on candidates: from the store, else by running them; repeat flaky ones; count.

`minify`, `locate` and `explain` all use `Queries`. A verdict is stored under the canonical key of the
repro, the job and the job's payload (for example what is turned off), so no query is run twice.

Where the failure is flaky (`repeats` > 1), a candidate passes only after that many runs, and fails at the
first run that shows the failure. A pass is stored only after all of its runs: a kill in between must not
leave half of it behind.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec

from torchrepro.engine.baseline import Failure, Original, measure
from torchrepro.engine.canonical_key import canonical_key
from torchrepro.engine.oracle import (
    JUDGE,
    JUDGE_ANNOUNCED,
    JUDGE_BEFORE_CODE,
    ROUND_SECONDS,
    IsolatedOracle,
    Oracle,
)
from torchrepro.engine.processes.executor import devices_of
from torchrepro.engine.store import Store
from torchrepro.nouns.errors import HarnessError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import Statistics
from torchrepro.nouns.verdict import Kind, Verdict


@dataclass(frozen=True, eq=False)
class Answer:
    """A candidate that fails as the baseline does, and its `index` in the given sequence."""

    index: int
    repro: Repro
    verdict: Verdict


class Queries:
    """Queries about one failure, on one oracle, with one store.

    `failure` is what a candidate has to show; by default the failure in `verdict`, the verdict on `original`.
    `observer` records values and graphs of candidates; by default the oracle does.
    `job` judges candidates unless a query names another job. `asked` may start above zero, to
    include earlier runs. Several `Queries` can share a store.
    """

    def __init__(
        self,
        original: Repro,
        verdict: Verdict,
        oracle: Oracle,
        *,
        observer: IsolatedOracle | None = None,
        store: Store | None = None,
        failure: Failure | None = None,
        repeats: int = 1,
        job: str = JUDGE,
        asked: int = 0,
    ) -> None:
        self.original, self.verdict = original, verdict
        self.failure = failure or Failure.of(verdict)
        self.store = store if store is not None else Store()
        self.observer = cast(IsolatedOracle, oracle) if observer is None else observer
        self.repeats = repeats
        self.baseline: Original | None = None
        """What `expect` was given."""
        self.statistics: dict[str, Statistics] = {}
        """Counts of queries, by label."""
        self.label = ""
        self._oracle = oracle
        self._job = job
        self._asked_before = asked
        self._began = time.monotonic()
        self.store.remember(canonical_key(original), verdict)

    def expect(self, baseline: Original) -> None:
        """Take another baseline for granted: what a candidate has to show, and in how many runs."""
        self.baseline = baseline
        self.verdict, self.failure = baseline.verdict, Failure.of(baseline.verdict)
        if baseline.repeats > self.repeats:
            self.store.forget_passes()  # they were decided by fewer runs
        self.repeats = baseline.repeats
        self.store.remember(canonical_key(self.original), baseline.verdict)

    # Queries.

    def verdicts(
        self,
        repros: Sequence[Repro],
        *,
        job: str = "",
        extra: Mapping[str, Any] | None = None,
        **payload: Any,
    ) -> list[Verdict]:
        """Return the verdict on each repro, several at a time; equal ones are run once.

        `payload` is passed to the job and is part of the key; `extra` is passed too but is not.
        """
        questions: dict[_Key, _Question] = {}
        order = []
        for index, repro in enumerate(repros):
            key = _Key.of(repro, job or self._job, payload)
            if key not in questions:
                questions[key] = self._question(index, repro, key)
            order.append(questions[key])
        self._run(list(questions.values()), {**payload, **(extra or {})})
        return [question.verdict for question in order if question.verdict is not None]

    def verdict_on(
        self, repro: Repro, *, job: str = "", extra: Mapping[str, Any] | None = None, **payload: Any
    ) -> Verdict:
        """Return the verdict on one repro (see `verdicts`)."""
        return self.verdicts([repro], job=job, extra=extra, **payload)[0]

    def failure_announced(self, repro: Repro) -> Verdict | None:
        """Return the verdict on a failing repro whose kernels announce their ops; None if it does not fail.

        What fails before there is code names the op by itself, and a command knows nothing of kernels.
        """
        kernels = self._job == JUDGE and isinstance(self._oracle, IsolatedOracle)
        verdict = self.verdict_on(repro, job=JUDGE_ANNOUNCED if kernels else "")
        return verdict if self.failure.shown_by(verdict) else None

    def fails(self, repro: Repro) -> bool:
        """Return whether a repro fails as the baseline does."""
        return self.failure.shown_by(self.verdict_on(repro))

    def first_failing(
        self,
        candidates: Sequence[Repro | None],
        *,
        is_hopeless: Callable[[Repro, str], bool] = lambda candidate, key: False,
        on_answer: Callable[[], None] = lambda: None,
        guesses: bool = False,
        in_order: bool = True,
    ) -> Answer | None:
        """Return the first candidate that fails, in the given order; None entries are skipped.

        Each worker runs one at a time. Verdicts come in any order: a failure is returned as soon as no
        candidate before it can still fail, and the runs still under way are cancelled. Unless `in_order`, the
        first failure that is seen is returned. Candidates for which `is_hopeless(candidate, key)` is true are
        not run. Of `guesses`, the first is run alone: it mostly fails, and a run that is cancelled has often
        been compiled.
        """
        for batch in self._batches(candidates, is_hopeless, 1 if guesses else self.workers):
            self._run(batch, until_one_fails=True, in_order=in_order, on_answer=on_answer)
            for question in batch:
                if question.fails and question.verdict is not None:
                    return Answer(question.index, question.repro, question.verdict)
        return None

    def known(self, repro: Repro, *, job: str = "", **payload: Any) -> Verdict | None:
        """Return the verdict on a repro if it is stored, else None."""
        return self._known(_Key.of(repro, job or self._job, payload))

    def run_once(self, repro: Repro) -> Verdict:
        """Run a repro once, even if its verdict is stored; the new verdict is not stored."""
        ((_, verdict),) = list(self._ask([repro], self._job, {}, keep_others=False))
        return verdict

    def measured(self, repro: Repro, verdict: Verdict, runs: int) -> Original:
        """Measure how often a repro fails that has failed once with this verdict; count the runs."""
        found = measure(repro, verdict, self._oracle, runs=runs)
        self.count(queries=found.runs - 1)
        return found

    def rounds(
        self, repro: Repro, *, own: int = 0, seconds: float | None = ROUND_SECONDS
    ) -> Sequence[Verdict]:
        """Judge one compilation on many sets of inputs (`IsolatedOracle.rounds`): one query."""
        self.count(queries=1)
        return self.observer.rounds(repro, own=own, seconds=seconds)

    def rounds_of_each(self, repros: Sequence[Repro]) -> Sequence[Sequence[Verdict] | None]:
        """Judge several such compilations at the same time, until one has a wrong value.

        Those that were still under way have None. Where the failure is flaky they are judged again while
        none has.
        """
        for _ in range(self.repeats):
            if len(repros) == 1:
                answers: Sequence[Sequence[Verdict] | None] = [self.rounds(repros[0])]
            else:
                self.count(queries=len(repros))
                answers = self.observer.rounds_of_each(repros)
            if any(verdict.fails for verdicts in answers for verdict in verdicts or ()):
                break
        return answers

    def parts_of(self, repro: Repro) -> int:
        """Return into how many compilations to split a large one: on a device each kernel takes its time."""
        return self.workers if devices_of(repro) else 1

    # Cost.

    @property
    def workers(self) -> int:
        return max(1, self._oracle.workers)

    @property
    def asked(self) -> int:
        """How many candidates were run."""
        return self._asked_before + sum(row.queries for row in self.statistics.values())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @contextmanager
    def labelled(self, label: str) -> Iterator[None]:
        """Count the queries of the body under a label."""
        before, self.label = self.label, label
        started = time.monotonic()
        try:
            yield
        finally:
            self.count(seconds=time.monotonic() - started)
            self.label = before

    def count(self, **more: float) -> None:
        """Add to the statistics of the current label."""
        row = self.statistics.get(self.label, Statistics())
        changed = {name: getattr(row, name) + value for name, value in more.items()}
        self.statistics[self.label] = replace(row, **changed)

    # Running them.

    def _batches(
        self, candidates: Sequence[Repro | None], is_hopeless: Callable[[Repro, str], bool], first: int
    ) -> Iterator[list[_Question]]:
        """Yield batches with an open query for each worker, the `first` smaller; a known failure ends one."""
        batch: list[_Question] = []
        met: set[_Key] = set()
        for index, candidate in enumerate(candidates):
            if candidate is None:
                continue
            key = _Key.of(candidate, self._job, {})
            if key in met:
                continue  # equal to an earlier one
            met.add(key)
            question = self._question(index, candidate, key)
            if question.is_open and is_hopeless(candidate, key.repro):
                self.count(rejected=1)
                question.runs_left = 0
            batch.append(question)
            if question.fails or sum(each.is_open for each in batch) == first:
                yield batch
                batch, first = [], self.workers
        yield batch

    def _question(self, index: int, repro: Repro, key: _Key) -> _Question:
        known = self._known(key)
        if known is None:
            return _Question(index, repro, key, self.repeats)
        self.count(known=1)
        return _Question(index, repro, key, 0, known, self.failure.shown_by(known))

    def _run(
        self,
        questions: Sequence[_Question],
        payload: Mapping[str, Any] | None = None,
        *,
        until_one_fails: bool = False,
        in_order: bool = True,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        """Run queries until none is open; with `until_one_fails`, none before the first that fails.

        Unless `in_order`, none at all is run after one has failed.
        """

        def wanted() -> Iterator[_Question]:
            if until_one_fails and not in_order and any(question.fails for question in questions):
                return iter(())
            before = itertools.takewhile(lambda question: not (until_one_fails and question.fails), questions)
            return (question for question in before if question.is_open)

        while open_ := list(wanted()):
            # Idle workers run further repeats of the same candidate.
            copies = max(1, self.workers // len(open_))
            runs = [question for question in open_ for _ in range(min(copies, question.runs_left))]
            answered = 0
            with closing(self._ask([run.repro for run in runs], open_[0].key.job, payload or {})) as answers:
                on_answer()
                for index, verdict in answers:
                    question, answered = runs[index], answered + 1
                    if question.is_open and question.take(verdict, self.failure):
                        self._remember(question)
                    on_answer()
                    if not any(wanted()):
                        break
            if not answered:
                raise HarnessError(f"the oracle was asked about {len(runs)} candidates and answered none")

    def _ask(
        self, repros: Sequence[Repro], job: str, payload: Mapping[str, Any], *, keep_others: bool = True
    ) -> Generator[tuple[int, Verdict], None, None]:
        self.count(queries=len(repros))
        with closing(self._oracle.judge(repros, job=job, **payload)) as answers:  # type: ignore[type-var]
            for index, verdict in answers:
                if keep_others and verdict.fails and not payload and not self.failure.shown_by(verdict):
                    self.store.also_seen(repros[index], verdict)
                yield index, verdict

    def _known(self, key: _Key) -> Verdict | None:
        found = self.store.verdict(key.text)
        if found is None and key.job == JUDGE_BEFORE_CODE:
            found = self.store.verdict(key.repro)
        return found

    def _remember(self, question: _Question) -> None:
        assert question.verdict is not None
        key = question.key
        # Verdicts of this job also hold for the usual job, unless the run was stopped before code.
        complete = key.job == JUDGE_BEFORE_CODE and question.verdict.kind is not Kind.NOT_COMPARABLE
        self.store.remember(key.repro if complete else key.text, question.verdict)


@dataclass(frozen=True, slots=True)
class _Key:
    """The key of a verdict: `text` is made of the repro's canonical key, the job and its payload."""

    repro: str
    job: str
    text: str

    @classmethod
    def of(cls, repro: Repro, job: str, payload: Mapping[str, Any]) -> _Key:
        key = canonical_key(repro)
        if job == JUDGE and not payload:
            return cls(key, job, key)
        described = key.encode() + msgspec.json.encode([job, payload], order="sorted")
        return cls(key, job, hashlib.sha256(described).hexdigest())


@dataclass(eq=False)
class _Question:
    """A candidate, and the verdict of its runs so far."""

    index: int
    repro: Repro
    key: _Key
    runs_left: int
    verdict: Verdict | None = None
    """Of the run that shows the failure, else of one that fails otherwise, else of the last one."""
    fails: bool = False

    @property
    def is_open(self) -> bool:
        return self.runs_left > 0

    def take(self, verdict: Verdict, failure: Failure) -> bool:
        """Record the verdict of a run and return whether the query is decided."""
        self.fails = failure.shown_by(verdict)
        if self.fails or self.verdict is None or not self.verdict.fails:
            self.verdict = verdict
        # If eager raises, it will raise again: no retry, unless eager is expected to raise.
        hopeless = verdict.kind is Kind.INVALID and failure.signature.kind is not Kind.MISSING_ERROR
        self.runs_left = 0 if self.fails or hopeless else self.runs_left - 1
        return not self.is_open
