"""The search process of a hunt: it sends seeds to its children and logs what they answer.

It makes no program itself and compiles nothing but the warm-up: what may crash happens in children, each with
a time limit. Many programs share a compilation. Where a child dies or is late, its seeds are halved; what
fails in company is judged alone; what then passes is kept as one program with its company.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.corpus.index import Corpus
from torchrepro.engine.processes.child import Outcome, Reporter
from torchrepro.engine.processes.executor import Executor, Task, executor_for
from torchrepro.engine.processes.fresh_process import job_named, raise_reported, verdict_of
from torchrepro.engine.processes.limits import memory_share
from torchrepro.engine.search.process import SearchRequest
from torchrepro.engine.search.setup import Stop, Timeline, throwaway, use_scratch, warming_up
from torchrepro.hunt.buckets import Recognised, buckets_in
from torchrepro.hunt.directory import NO_PROGRAM, NOT_JUDGED, SORTED, SUSPECT, HuntDirectory, Judged, Tally
from torchrepro.hunt.program import TOGETHER, generator_of, seeds
from torchrepro.hunt.registry import chosen_generators
from torchrepro.hunt.settings import HuntSettings
from torchrepro.nouns.errors import HarnessError, SearchStopped, TorchReproError
from torchrepro.nouns.repro import Compiler
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
        (
            job_named(generator.function),
            job_named(f"{generator.jobs}:judge"),
        )  # imported here, so that no child has to
        if generator.prepare:
            job_named(generator.prepare)()
    tally = Tally.of(directory.judged())
    repro = throwaway(Compiler("inductor"))
    reason, notes = "", []
    with executor_for(repro, settings.jobs, stop.waiting) as executor:
        with warming_up(request, repro, stop):
            timeline.phase("warm")
        use_scratch(directory)
        if any(generator.needs_sources for generator in chosen_generators(settings.generators)):
            reporter.send(step="capturing the graphs of small nets")
            notes = _collect_sources(directory, settings, executor)
        stop.after(settings.seconds)
        began = time.monotonic()
        try:
            _Loop(settings, directory, tally, executor, reporter).run()
        except SearchStopped as stopped:
            reason = str(stopped)
        seconds = time.monotonic() - began
    return {"stopped": reason, "seconds": seconds, "notes": notes}


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
    sorting: Task | None = None
    under_way: int = 0
    reported: float = 0.0
    given_up: set[str] = field(default_factory=set)
    """Failures that could not be sorted."""

    def __post_init__(self) -> None:
        self.judged_before = self.tally.programs
        self.left = math.inf if self.settings.programs is None else self.settings.programs
        self.known_before = frozenset(self.tally.buckets)
        self.streams = self._streams()
        self.choices = random.Random(self.settings.seed)
        with Corpus(self.directory.corpus, create=True):
            pass
        for failure in self.tally.failures.values():
            self._keep(failure)

    def run(self) -> None:
        """Judge programs until enough was found; what was begun is finished."""
        while not self._enough():
            while self.under_way < self.executor.workers and (task := self._next()) is not None:
                self._start(task)
            if not self.under_way:
                break
            task, outcome = self.executor.wait()
            self.under_way -= 1
            self._take(task, outcome)
            self._report()

    def _enough(self) -> bool:
        until = self.settings.until_new
        return until is not None and len(self.tally.buckets.keys() - self.known_before) >= until

    def _start(self, task: Task) -> None:
        self.executor.start(task)
        self.under_way += 1

    def _next(self) -> Task | None:
        """Return the next task: what is left of a batch, a failure to be sorted, or new programs."""
        if self.waiting:
            return self.waiting.popleft()
        one_is_free = self.under_way or self.executor.workers == 1 or self.left < 1
        if self.settings.sort_seconds > 0 and self.sorting is None and one_is_free:
            self._sort_alike()
            unsorted = [each for each in self.tally.unsorted if each.seed not in self.given_up]
            if unsorted:
                self.sorting = self._sort(unsorted[0])
                return self.sorting
        count = int(min(self.settings.batch, self.left))
        if count < 1:
            return None
        self.left -= count
        generators = chosen_generators(self.settings.generators)
        generator = self.choices.choices(generators, [each.weight for each in generators])[0]
        stream = self.streams[generator.name]
        return self._judge([next(stream) for _ in range(count)])

    def _streams(self) -> Mapping[str, Iterator[str]]:
        """Return the seeds of each generator that were not judged yet."""
        return {
            generator.name: (
                seed for seed in seeds(generator, self.settings.seed) if seed not in self.tally.seen
            )
            for generator in chosen_generators(self.settings.generators)
        }

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
        limit = memory_share(self.executor.workers)
        return Task(job, _NOTHING, payload, time_limit=seconds, memory_limit=limit, local=True)

    # Outcomes.

    def _take(self, task: Task, outcome: Outcome) -> None:
        if task.job == _SORT:
            self._take_bucket(task, outcome)
        elif "verdict" in task.payload:
            self._settle([_judged(outcome) or _lost(task.payload["seed"], outcome)])
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
            self.waiting.append(self._judge([suspect.seed], alone=True, company=together))
        self._settle([each for each in found if each.kind != SUSPECT])

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
        self.sorting = None
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
        for failure in self.tally.unsorted:
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
            self._keep(each)

    def _keep(self, judged: Judged) -> None:
        """Add a failing bundle to the corpus."""
        if judged.fails and judged.bundle:
            with Corpus(self.directory.corpus, create=True) as corpus:
                corpus.add(Path(judged.bundle))

    def _report(self) -> None:
        """Tell the user how far the hunt is, now and then."""
        now = time.monotonic()
        if now - self.reported < _SECONDS_BETWEEN_REPORTS:
            return
        self.reported = now
        self.reporter.send(step=self._status())

    def _status(self) -> str:
        minutes = (time.monotonic() - self.began) / 60
        programs = self.tally.programs
        rate = (programs - self.judged_before) / max(minutes, 1e-3)
        failures = f"{len(self.tally.failures)} failures, {len(self.tally.buckets)} buckets"
        return f"{programs:,} programs ({rate:.0f}/min), {failures}"


_NOTHING = throwaway(Compiler("inductor"))
"""A task has a repro; these make their own."""


def _judged(outcome: Outcome) -> Judged | None:
    return msgspec.convert(outcome.result, Judged) if outcome.result is not None else None


def _lost(seed: str, outcome: Outcome) -> Judged:
    return Judged(seed, Kind.CRASH.value, "its process died while it was saved", not_saved=outcome.death)
