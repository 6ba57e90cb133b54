"""The search process of a hunt: it sends seeds to its children and logs what they answer.

It makes no program itself and compiles nothing but the warm-up: what may crash happens in children, each with
a time limit. Many programs share a compilation. Where a child dies or is late, its seeds are halved; what
fails in company is judged alone; what then passes is kept as one program with its company.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from torchrepro.engine.processes.child import Outcome, Reporter
from torchrepro.engine.processes.executor import Executor, Task, executor_for
from torchrepro.engine.processes.fresh_process import job_named, raise_reported, verdict_of
from torchrepro.engine.processes.limits import memory_share, thread_share, usable_cores
from torchrepro.engine.search.process import SearchRequest
from torchrepro.engine.search.run_directory import seed_here
from torchrepro.engine.search.setup import Stop, Timeline, throwaway, use_scratch, warming_up
from torchrepro.hunt.buckets import Recognised, buckets_in
from torchrepro.hunt.directory import (
    NO_PROGRAM,
    NOT_JUDGED,
    REDUCING,
    SORTED,
    SUSPECT,
    HuntDirectory,
    Judged,
    Tally,
)
from torchrepro.hunt.registry import chosen_generators
from torchrepro.hunt.seeds import TOGETHER, NewSeeds, generator_of
from torchrepro.hunt.settings import HuntSettings
from torchrepro.nouns.errors import HarnessError, SearchStopped, TorchReproError
from torchrepro.nouns.repro import Compiler
from torchrepro.nouns.sections import counted
from torchrepro.nouns.verdict import Kind

_SECONDS_TOGETHER = 240.0
_SECONDS_TO_MATCH = 90.0
_SECONDS_TO_COLLECT = 600.0
_SECONDS_TO_SAVE = 60.0
_COLLECT = "torchrepro.hunt.sources:collect_sources"
_SORT = "torchrepro.hunt.jobs:sort_failure"
_SECONDS_BETWEEN_REPORTS = 5.0
_COMPANY = 4
"""How many of a batch are kept where one of them fails in company only."""


def hunt(request: SearchRequest, reporter: Reporter) -> dict[str, Any]:
    """Hunt until the time is up, enough was found, or Ctrl-C; return what was done as plain data."""
    timeline = Timeline(reporter, request.asked)
    settings = msgspec.convert(request.settings, HuntSettings)
    directory = HuntDirectory(Path(request.directory))
    stop = Stop()
    stop.listen()
    timeline.phase("load")
    for generator in chosen_generators(settings.generators):
        for job in (generator.function, f"{generator.jobs}:judge"):
            job_named(job)  # imported here, so that no child has to
        if generator.prepare:
            job_named(generator.prepare)()
    require_torch(settings.torch)
    directory.belong_to(str(torch.__version__), str(torch.version.git_version or ""), sys.executable)
    tally = Tally.of(directory.judged())
    repro = throwaway(Compiler("inductor"))
    reason, notes = "", list[str]()
    jobs = settings.jobs or usable_cores()
    threads = thread_share(jobs * settings.neighbours)
    with executor_for(repro, jobs, stop.waiting, threads=threads) as executor:
        with warming_up(replace(request, seed=str(seed_here())), repro, stop):
            timeline.phase("warm")
        use_scratch(directory)
        if any(generator.needs_sources for generator in chosen_generators(settings.generators)):
            reporter.send(step="capturing the graphs of small nets")
            notes = _collect_sources(directory, settings, executor)
        stop.after(settings.seconds)
        began = time.monotonic()
        loop = _Loop(settings, directory, tally, executor, reporter)
        try:
            loop.run()
        except SearchStopped as stopped:
            reason = str(stopped)
        if loop.to_reduce:
            programs = counted(len(loop.to_reduce), "failing Python program")
            notes = [*notes, f"no time was left to reduce {programs}: the same command judges them again"]
        seconds = time.monotonic() - began
    return {"stopped": reason, "seconds": seconds, "notes": notes}


def require_torch(wanted: str) -> None:
    """Raise if another torch than the wanted version was imported."""
    if wanted not in ("", str(torch.__version__)):
        raise TorchReproError(
            f"torch {wanted} is to be hunted, and {sys.executable} imports {torch.__version__}",
            next_step="look for another torch on PYTHONPATH",
        )


def _collect_sources(directory: HuntDirectory, settings: HuntSettings, executor: Executor) -> list[str]:
    """Make the bundles from which some generators make programs, unless an earlier hunt has made them.

    Return what is missing among them.
    """
    if directory.sources.exists():
        return []
    payload = {
        "directory": str(directory.sources),
        "corpora": list(settings.corpora),
        "trusted": list(settings.trusted),
    }
    executor.start(Task(_COLLECT, _NOTHING, payload, time_limit=_SECONDS_TO_COLLECT, local=True))
    _, outcome = executor.wait()
    raise_reported(outcome)
    return list(outcome.result or ())


@dataclass(eq=False)
class _Loop:
    settings: HuntSettings
    directory: HuntDirectory
    tally: Tally
    executor: Executor
    reporter: Reporter
    began: float = field(default_factory=time.monotonic)
    waiting: deque[Task] = field(default_factory=deque)
    """What comes before new programs."""
    to_reduce: deque[Task] = field(default_factory=deque)
    """Python programs that fail: a reduction takes minutes, so these share the time of sorting."""
    sorting: Task | None = None
    sorting_seconds: float = 0.0
    under_way: int = 0
    reported: float = 0.0
    alike: dict[str, list[str]] = field(default_factory=dict)
    """Python programs by how they fail before they are reduced."""
    given_up: set[str] = field(default_factory=set)
    """Failures that could not be sorted."""

    def __post_init__(self) -> None:
        self.judged_before = self.tally.programs
        self.seeds = NewSeeds(self.settings, self.tally.seen)
        self.known_before = frozenset(self.tally.buckets)
        self.directory.keep(self.tally.failures.values())

    def run(self) -> None:
        """Judge programs until enough was found; what was begun is finished."""
        while not self.tally.has_enough(self.settings.until_new, self.known_before):
            while self.under_way < self.executor.workers and (task := self._next()) is not None:
                self._start(task)
            if not self.under_way:
                break
            task, outcome = self.executor.wait()
            self.under_way -= 1
            self._take(task, outcome)
            self._report()

    def _start(self, task: Task) -> None:
        self.executor.start(task)
        self.under_way += 1

    def _next(self) -> Task | None:
        """Return the next task: what is left of a batch, a failure to be sorted, or new programs."""
        if self.waiting:
            return self.waiting.popleft()
        if self.sorting is None and self._may_sort():
            self.sorting = self._next_to_sort()
            if self.sorting is not None:
                return self.sorting
        chosen = self.seeds.take()
        if chosen:
            return self._judge(chosen)
        return self.to_reduce.popleft() if self.to_reduce else None

    def _next_to_sort(self) -> Task | None:
        if self.to_reduce:
            return self.to_reduce.popleft()
        if self.settings.sort_seconds <= 0:
            return None
        self._sort_alike()
        unsorted = [each for each in self.tally.unsorted if each.seed not in self.given_up]
        return self._sort(unsorted[0]) if unsorted else None

    def _may_sort(self) -> bool:
        """Return whether a worker may sort now: others judge meanwhile, and a single one half of the time."""
        if self.under_way or self.seeds.left < 1:
            return True
        spent = time.monotonic() - self.began
        return self.executor.workers == 1 and self.sorting_seconds <= spent / 2

    # Tasks.

    def _judge(
        self, chosen: Sequence[str], *, alone: bool = False, company: Sequence[str] = (), **more: Any
    ) -> Task:
        payload = {
            "seeds": list(chosen),
            "sources": [str(path) for path in sorted(self.directory.sources.glob("*"))],
            "alone": alone,
            "bundle": str(self.directory.failing / chosen[0].replace(TOGETHER, "_")) if alone else "",
            "company": list(company),
            **more,
        }
        generator = generator_of(chosen[0])
        seconds = generator.seconds_alone if alone else _SECONDS_TOGETHER
        return self._task(f"{generator.jobs}:judge", payload, seconds)

    def _sort(self, failure: Judged) -> Task:
        seconds = self.settings.sort_seconds
        payload = {
            "bundle": failure.bundle,
            "seed": failure.seed,
            "directory": str(self.directory.buckets),
            "seconds": seconds,
            "jobs": 1,
        }
        return self._task(_SORT, payload, seconds + _SECONDS_TO_MATCH)

    def _task(self, job: str, payload: Mapping[str, Any], seconds: float) -> Task:
        limit = memory_share(self.executor.workers * self.settings.neighbours)
        return Task(job, _NOTHING, payload, time_limit=seconds, memory_limit=limit, local=True)

    # Outcomes.

    def _take(self, task: Task, outcome: Outcome) -> None:
        if task is self.sorting:
            self.sorting = None
            self.sorting_seconds += outcome.seconds
        if task.job == _SORT:
            self._take_bucket(task, outcome)
        elif "verdict" in task.payload:
            self._settle([_saved(task.payload["seed"], outcome)])
        elif task.payload["alone"]:
            self._take_alone(task, outcome)
        elif outcome.result is not None:
            self._take_batch(task, outcome)
        else:
            self._halve(task)

    def _take_batch(self, task: Task, outcome: Outcome) -> None:
        found = [msgspec.convert(entry, Judged) for entry in outcome.result]
        graphs = generator_of(task.payload["seeds"][0]).graphs
        together = [each.seed for each in found if each.kind != NO_PROGRAM] if graphs else []
        for suspect in (each for each in found if each.kind == SUSPECT):
            if graphs:
                self.waiting.append(self._judge([suspect.seed], alone=True, company=together))
            else:
                self._take_alike(suspect)
        self._settle([each for each in found if each.kind != SUSPECT])

    def _take_alike(self, suspect: Judged) -> None:
        """Reduce a Python program; of those that fail in the same way before that, only the first."""
        alike = self.alike.setdefault(suspect.signature, [])
        alike.append(suspect.seed)
        if len(alike) == 1:
            self.to_reduce.append(self._judge([suspect.seed], alone=True))
        elif alike[0] in self.tally.seen:
            self._follow(alike[0], suspect.seed)

    def _follow(self, first: str, seed: str) -> None:
        """Let a program be what the first one is that fails as it does; if that passes, judge it alone."""
        failure = self.tally.failures.get(first)
        if failure is None:
            self.waiting.append(self._judge([seed], alone=True))
        else:
            self._settle([replace(failure, seed=seed, bundle="", not_saved=f"it fails as {first} does")])

    def _halve(self, task: Task) -> None:
        """Judge both halves of a batch that killed its process or was late."""
        chosen = task.payload["seeds"]
        if len(chosen) == 1:
            self.waiting.append(self._judge(chosen, alone=True))
            return
        middle = len(chosen) // 2
        self.waiting += [self._judge(half) for half in (chosen[:middle], chosen[middle:])]

    def _take_alone(self, task: Task, outcome: Outcome) -> None:
        seed = task.payload["seeds"][0]
        if outcome.died_in_reference and task.payload.get("fp64", True):
            self.waiting.append(self._judge([seed], alone=True, fp64=False))
            return
        if outcome.result is None and outcome.phase == REDUCING:
            self.waiting.append(self._judge([seed], alone=True, reduce=False))
            return
        if outcome.result is not None:
            judged = [msgspec.convert(entry, Judged) for entry in outcome.result]
            company = task.payload["company"]
            if company and TOGETHER not in seed and judged[0].kind == Kind.PASS:
                self.waiting.append(self._in_company(seed, company))
            self._settle(judged)
            return
        try:
            verdict = replace(verdict_of(outcome, task.time_limit), seconds=outcome.seconds)
        except TorchReproError as exc:
            self._settle([Judged(seed, Kind.INVALID.value, str(exc))])
            return
        except HarnessError as exc:
            self._settle([Judged(seed, NOT_JUDGED, str(exc))])
            return
        if not verdict.fails:
            self._settle([Judged(seed, verdict.kind.value, verdict.summary)])
            return
        payload = {
            "seed": seed,
            "sources": task.payload["sources"],
            "bundle": task.payload["bundle"],
            "verdict": msgspec.to_builtins(verdict),
        }
        self.waiting.append(self._task(f"{generator_of(seed).jobs}:save", payload, _SECONDS_TO_SAVE))

    def _in_company(self, seed: str, company: Sequence[str]) -> Task:
        """Judge a program that fails in company only together with what was next to it, as one program."""
        place = company.index(seed) if seed in company else 0
        start = max(0, min(place - 1, len(company) - _COMPANY))
        return self._judge([TOGETHER.join(company[start : start + _COMPANY])], alone=True)

    def _take_bucket(self, task: Task, outcome: Outcome) -> None:
        seed = task.payload["seed"]
        if outcome.result is None:
            self.given_up.add(seed)
            return
        self._take_sorted(seed, str(outcome.result["bucket"]))

    def _take_sorted(self, seed: str, bucket: str) -> None:
        judged = Judged(seed, SORTED, bucket=bucket)
        self.directory.append([judged])
        self.tally.take(judged)

    def _sort_alike(self) -> None:
        """Put reduced Python programs into the bucket of one with the same signature."""
        known = {
            self.tally.failures[seed].signature: bucket
            for bucket, seeds in self.tally.buckets.items()
            for seed in seeds
            if not generator_of(seed).graphs
        }
        for failure in self.tally.without_bucket:
            name = None if generator_of(failure.seed).graphs else known.get(failure.signature)
            for bucket in buckets_in(self.directory.buckets) if name is not None else ():
                if bucket.about is not None and bucket.about.bucket == name:
                    bucket.add(failure.seed, Recognised.SIGNATURE)
                    self._take_sorted(failure.seed, name)
                    break

    def _settle(self, judged: Sequence[Judged]) -> None:
        self.directory.append(judged)
        for each in judged:
            self.tally.take(each)
        self.directory.keep(judged)
        for first, *others in self.alike.values():
            if any(each.seed == first for each in judged):
                for seed in others:
                    self._follow(first, seed)

    def _report(self) -> None:
        """Tell the user how far the hunt is, now and then."""
        now = time.monotonic()
        if now - self.reported < _SECONDS_BETWEEN_REPORTS:
            return
        self.reported = now
        self.reporter.send(step=self.tally.status(now - self.began, self.judged_before))


_NOTHING = throwaway(Compiler("inductor"))
"""A task has a repro; these make their own."""


def _saved(seed: str, outcome: Outcome) -> Judged:
    if outcome.result is not None:
        return msgspec.convert(outcome.result, Judged)
    return Judged(seed, Kind.CRASH.value, "its process died while it was saved", not_saved=outcome.death)
