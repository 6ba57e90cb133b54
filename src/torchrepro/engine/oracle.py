"""Oracle: judges candidates and records their values, each in its own process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from torchrepro.bundle.load import load_verified
from torchrepro.cut.record_values import Recording, read_values
from torchrepro.engine.processes.child import Outcome
from torchrepro.engine.processes.executor import Task
from torchrepro.engine.processes.fresh_process import raise_reported, verdict_of
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict

JUDGE = "torchrepro.engine.jobs:judge"
JUDGE_ANNOUNCED = "torchrepro.engine.jobs:judge_announced"
JUDGE_BEFORE_CODE = "torchrepro.engine.jobs:judge_before_code"
ROUND_SECONDS = 20.0
"""No new set of inputs is begun after this many seconds."""


class Oracle(Protocol):
    """Judges candidates. `IsolatedOracle` runs each in isolation; oracles of tests only inspect the graph."""

    workers: int
    """How many candidates are judged at the same time."""

    def judge(
        self, candidates: Sequence[Repro], *, job: str = JUDGE, **payload: Any
    ) -> Iterator[tuple[int, Verdict]]:
        """Yield (index, verdict) of each as they come; closing the iterator cancels those still under way.

        `job` is called with each candidate and the payload, and returns a verdict.
        """
        ...


class TaskExecutor(Protocol):
    """Runs tasks: in children of this process (`Executor`), or elsewhere (`engine/remote/`)."""

    workers: int

    def start(self, task: Task) -> None: ...
    def wait(self) -> tuple[Task, Outcome]: ...
    def cancel(self, task: Task) -> None: ...


_FLOOR = 20.0
_HANG_FLOOR = 8.0


@dataclass(eq=False)
class Timeout:
    """The limit for the next candidate, in seconds."""

    original: float
    """Seconds that the baseline may take, or took."""
    hangs: bool = False
    _ended: list[float] = field(default_factory=list)

    @classmethod
    def after(cls, verdict: Verdict) -> Timeout:
        """Return the timeout that follows from the verdict on the baseline."""
        return cls(verdict.seconds, hangs=verdict.kind is Kind.HANG)

    @property
    def limit(self) -> float:
        if not self.hangs:
            return max(_FLOOR, 4 * self.original + 10)
        slowest = max(self._ended, default=_HANG_FLOOR / 2)
        return min(max(_HANG_FLOOR, 3 * slowest), max(_HANG_FLOOR, self.original))

    def learn(self, verdict: Verdict) -> None:
        """Take a candidate into account that terminated."""
        if verdict.kind is not Kind.HANG:
            self._ended.append(verdict.seconds)


_ROUNDS = "torchrepro.engine.jobs:judge_rounds"
_RECORD = "torchrepro.engine.jobs:record"
_GRAPHS = "torchrepro.execute.record_graphs:record_call"

_WRITES_FILES = (_RECORD, _GRAPHS)
"""Jobs whose payload names a file or directory that this process reads afterwards."""
_RECORDED_BYTES = 2 << 30


class IsolatedOracle:
    """Judges and observes on an executor."""

    def __init__(self, executor: TaskExecutor, timeout: Timeout, memory_limit: int | None = None) -> None:
        self.workers = executor.workers
        self._timeout = timeout
        self._executor = executor
        self._memory_limit = memory_limit

    def after(self, baseline: Verdict) -> IsolatedOracle:
        """Return an oracle on the same executor whose timeout follows from what the baseline took."""
        return IsolatedOracle(self._executor, Timeout.after(baseline), self._memory_limit)

    def judge(
        self, candidates: Sequence[Repro], *, job: str = JUDGE, **payload: Any
    ) -> Iterator[tuple[int, Verdict]]:
        under_way: dict[Task, int] = {}
        try:
            for index, candidate in enumerate(candidates):
                task = self._started(job, candidate, **payload)
                under_way[task] = index
            while under_way:
                task, outcome = self._executor.wait()
                index = under_way.pop(task)
                if outcome.died_in_reference and task.payload.get("fp64", True):
                    under_way[self._started(job, task.repro, **{**payload, "fp64": False})] = index
                    continue
                verdict = self._verdict(outcome, task.time_limit)
                self._timeout.learn(verdict)
                yield index, verdict
        finally:
            for task in under_way:
                self._executor.cancel(task)

    def record(self, repro: Repro) -> Recording | None:
        """Return the values inside, from an eager run; None where it does not terminate."""
        with tempfile.TemporaryDirectory(prefix="torchrepro-values-") as directory:
            path = Path(directory) / "values.pt"
            outcome = self.ran(_RECORD, repro, path=str(path), limit=_RECORDED_BYTES)
            return read_values(path) if outcome.result else None  # the file is mapped, so it may be unlinked

    def rounds(
        self, repro: Repro, *, own: int = 0, seconds: float | None = ROUND_SECONDS
    ) -> Sequence[Verdict]:
        """Return a verdict for each set of inputs of one compilation (`cut/batches.py`); none if it died."""
        outcome = self.ran(_ROUNDS, repro, own=own, seconds=seconds)
        return _verdicts_in(outcome)

    def rounds_of_each(self, repros: Sequence[Repro]) -> list[Sequence[Verdict] | None]:
        """Return the same for several compilations, which run at the same time until one has a wrong value.

        Those that were still under way then have None.
        """
        tasks = [self._started(_ROUNDS, repro, own=0, seconds=ROUND_SECONDS) for repro in repros]
        found: dict[Task, Sequence[Verdict]] = {}
        try:
            while len(found) < len(tasks):
                task, outcome = self._executor.wait()
                found[task] = _verdicts_in(outcome)
                if any(verdict.fails and verdict.comparison is not None for verdict in found[task]):
                    break
        finally:
            for task in tasks:
                self._executor.cancel(task)
        return [found.get(task) for task in tasks]

    def graphs(self, repro: Repro) -> Sequence[Repro]:
        """Return the graphs that capture makes of a whole call, trusted as far as the call was."""
        with tempfile.TemporaryDirectory(prefix="torchrepro-graphs-") as directory:
            outcome = self.ran(_GRAPHS, repro, directory=directory)
            bundles = [Path(path) for path in (outcome.result or {}).get("bundles", ())]
            return [load_verified(path) for path in bundles]

    def _started(self, job: str, repro: Repro, **payload: Any) -> Task:
        limit = self._timeout.limit
        payload = {**payload, "time_limit": limit}
        task = Task(job, repro, payload, limit, self._memory_limit, local=job in _WRITES_FILES)
        self._executor.start(task)
        return task

    def ran(self, job: str, repro: Repro, **payload: Any) -> Outcome:
        """Run one task. Raise errors of torchrepro; return what the user's code raises in the outcome."""
        task = self._started(job, repro, **payload)
        try:
            ended, outcome = self._executor.wait()
        except BaseException:
            self._executor.cancel(task)
            raise
        assert ended is task
        error: Mapping[str, str] | None = outcome.error
        if error is not None and error["kind"] != "user" and outcome.phase == "start":
            raise_reported(outcome)
        return outcome

    def _verdict(self, outcome: Outcome, limit: float) -> Verdict:
        """Return the verdict; `INVALID` if eager does not terminate: the compiler was not tested."""
        try:
            return verdict_of(outcome, limit)
        except TorchReproError as exc:
            return Verdict(Kind.INVALID, summary=str(exc), seconds=outcome.seconds)


def _verdicts_in(outcome: Outcome) -> list[Verdict]:
    return [msgspec.convert(verdict, Verdict) for verdict in outcome.result or ()]
