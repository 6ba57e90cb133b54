"""Replay a corpus with one interpreter or two, in parallel, and keep each result as soon as it is there.

First the cheap gate: the code of a bundle is generated and compared with the code of an earlier outcome. If
both are the same, and the compilers and what the code includes of torch, that outcome holds and nothing is
run. Bundles whose code has changed run first. Every replay is a fresh process with fresh compile caches. A
run that was killed continues where it stopped. Memory does not grow with the corpus, but for a list of ids:
only requests under way are held.
"""

from __future__ import annotations

import heapq
import json
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from torchrepro.bundle.archive import new_run_id
from torchrepro.corpus.findings import Outcome, Result, outcome_of
from torchrepro.corpus.index import NAMED, Corpus, Recorded
from torchrepro.corpus.runs import Progress, Run, Runs
from torchrepro.engine.generated_code import digest_code
from torchrepro.engine.other_python import (
    Interpreter,
    Replayed,
    ReplaySettings,
    end_replays,
    generate,
    replay,
)
from torchrepro.engine.remote.carried import submit_with
from torchrepro.nouns.environment import cpu_name, cxx_version
from torchrepro.nouns.errors import TorchReproError

_HEADER = "cpp_prefix.h"
"""In generated C++ code: what it computes depends on torch's headers too."""
_TELLING = (Result.FAILS, Result.FAILS_OTHERWISE, Result.PASSES)


@dataclass(frozen=True, slots=True)
class Plan:
    """How a corpus is replayed."""

    interpreters: tuple[Interpreter, ...]
    repeat: int = 1
    jobs: int = 1
    run_all: bool = False
    """Also run what generates the same code as before."""
    shard: tuple[int, int] = (1, 1)
    time_limit: float | None = None
    trusted: tuple[str, ...] = ()
    only: str = ""
    """The bundles with this id, name or bucket."""

    @property
    def resume(self) -> str:
        """What a killed run must have in common with this one to be continued by it."""
        known = [[str(each.python), str(each), each.commit] for each in self.interpreters]
        return json.dumps([known, self.repeat, self.run_all, self.shard, self.trusted, self.only])


# One query, as plain data: what an executor is given, here or on another machine.


@dataclass(frozen=True, slots=True)
class Request:
    """Replay a bundle, or only generate its code."""

    bundle: str
    """Its id."""
    path: Path
    interpreter: Interpreter
    side: int
    only_code: bool
    how: ReplaySettings


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request, and where."""

    request: Request
    replayed: Replayed
    """With nothing but the digest of the code, if that was all that was asked for."""
    code: str
    """The normalised generated code."""
    host: str
    tools: str


def run_request(request: Request) -> Answer:
    """Run a request in a fresh process with fresh caches, and wait for it. Never raises."""
    if request.only_code:
        code = generate(request.path, request.interpreter, request.how)
        replayed = Replayed(code=digest_code(code))
    else:
        replayed, code = replay(request.path, request.interpreter, request.how)
    return Answer(request, replayed, code, platform.node(), tools_of(request.interpreter))


@cache
def tools_of(interpreter: Interpreter) -> str:
    """Return what generated code is compiled by and for: the same code may behave otherwise with others."""
    return " | ".join((cxx_version(), cpu_name(), interpreter.triton))


OnProgress = Callable[[Progress], None]


def replay_corpus(
    corpus: Corpus,
    plan: Plan,
    *,
    executor: Executor | None = None,
    fresh: bool = False,
    on_progress: OnProgress = lambda progress: None,
) -> tuple[Run, Progress]:
    """Replay a corpus and return the run, under which its outcomes are (`Runs.outcomes`).

    `executor` may be anything with `submit`, on other machines too: bundles travel along. By default threads
    of this process start processes here.
    """
    chosen = shard_of(corpus, *plan.shard, only=plan.only)
    if not chosen and plan.shard[1] == 1:
        what = f"no bundle or bucket of it is called {plan.only!r}" if plan.only else "it is empty"
        raise TorchReproError(
            f"nothing in {corpus.directory} can be replayed: {what}",
            next_step=f"see torchrepro corpus list {corpus.directory}",
        )
    runs = Runs(corpus)
    run, resumed = runs.start(plan.interpreters, plan.repeat, plan.shard, resume=plan.resume, fresh=fresh)
    if resumed:
        corpus.notes.append("a run that had been interrupted was continued; --fresh starts over")
    progress = Progress(total=len(chosen) * len(plan.interpreters))
    with _executor(executor, plan.jobs) as pool:
        for side, interpreter in enumerate(plan.interpreters):
            progress.done += sum(runs.outcome(run, identity, side) is not None for identity in chosen)
            remote = executor is not None
            work = _Work(corpus, runs, plan, run, side, interpreter, pool, remote, progress, on_progress)
            work.gate(chosen)
            work.replay(chosen)
    runs.finish(run)
    return run, progress


def shard_of(corpus: Corpus, index: int, count: int, *, only: str = "") -> list[str]:
    """Return the ids of shard `index` of `count`: the same on every machine with the same corpus."""
    where = f"WHERE {NAMED}" if only else ""
    rows = corpus.database.execute(f"SELECT id, seconds FROM bundles {where}", (only,) if only else ())
    return balanced(rows.fetchall(), index, count)


def balanced(rows: Sequence[tuple[str, float]], index: int, count: int) -> list[str]:
    """Return the ids of shard `index` of `count`; `rows` are ids and recorded seconds, in any order.

    The longest first, each to the shard with the least to do so far. What was never run counts as the median.
    """
    usual = median([seconds for _, seconds in rows if seconds] or [1.0])
    loads = [(0.0, number) for number in range(1, count + 1)]
    mine = []
    for identity, seconds in sorted(rows, key=lambda row: (-(row[1] or usual), row[0])):
        load, number = loads[0]
        heapq.heapreplace(loads, (load + (seconds or usual), number))
        if number == index:
            mine.append(identity)
    return mine


@contextmanager
def _executor(given: Executor | None, jobs: int) -> Iterator[Executor]:
    """Yield the executor; whatever ends the body early ends the replays of this process too."""
    if given is not None:
        yield given
        return
    pool = ThreadPoolExecutor(jobs, "replay")
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        end_replays()
        raise
    finally:
        pool.shutdown(wait=True)


@dataclass(slots=True)
class _Work:
    """The replays of a run with one interpreter."""

    corpus: Corpus
    runs: Runs
    plan: Plan
    run: Run
    side: int
    interpreter: Interpreter
    pool: Executor
    remote: bool
    progress: Progress
    on_progress: OnProgress

    def gate(self, chosen: list[str]) -> None:
        """Generate the code of what has an earlier outcome with code; where it is the same, keep that."""
        if self.plan.run_all:
            return
        self._tell(f"generating code with torch {self.interpreter.torch}")
        asked = (
            self._request(identity, only_code=True)
            for identity in chosen
            if self._outcome(identity) is None
            and self._gated(identity) is None
            and self._earlier(identity)[0]
        )
        for answer in self._answers(asked):
            identity, code = answer.request.bundle, answer.replayed.code
            self.corpus.keep_code(code, answer.code)
            earlier, headers = self._earlier(identity, answer.tools)
            same_code = bool(code) and {each.code for each in earlier if not each.cannot_run} == {code}
            # What does not have to run first is not noted as changed.
            self.runs.gate(self.run, identity, self.side, "" if same_code else code)
            if same_code and (headers == self.interpreter.headers or _HEADER not in answer.code):
                for each in earlier:
                    self._record(answer, each, kept=True)
                self.progress.done += 1
            self._tell("")

    def replay(self, chosen: list[str]) -> None:
        """Replay what has no outcome yet: first what has changed, as often as it takes to be sure."""
        self._tell(f"replaying with torch {self.interpreter.torch}")
        changed = [identity for identity in chosen if self._gated(identity)]
        first = set(changed)
        order = [*changed, *(identity for identity in chosen if identity not in first)]
        waiting = iter([identity for identity in order if self._outcome(identity) is None])
        again: list[str] = []

        def requests() -> Iterator[Request]:
            for identity in waiting:
                yield self._request(identity)
            while again:
                yield self._request(again.pop())

        under_way = True
        while under_way:
            under_way = False
            for answer in self._answers(requests()):
                under_way = True
                self.corpus.keep_code(answer.replayed.code, answer.code)
                self._record(answer, answer.replayed)
                self.progress.replays += 1
                identity = answer.request.bundle
                if self._outcome(identity) is None:
                    again.append(identity)
                else:
                    self.progress.done += 1
                    self._tell("")

    def _record(self, answer: Answer, replayed: Replayed, *, kept: bool = False) -> None:
        version, place = answer.request.interpreter, (answer.request.bundle, self.run.id, self.side)
        tools = (answer.host, answer.tools, version.torch, version.commit)
        self.corpus.record(Recorded(new_run_id(), *place, *tools, replayed, kept, version.headers))

    def _answers(self, requests: Iterator[Request]) -> Iterator[Answer]:
        """Yield answers as they come, with at most twice as many requests under way as there are jobs."""
        under_way: set[Future[Answer]] = set()
        exhausted = False
        try:
            while under_way or not exhausted:
                while not exhausted and len(under_way) < 2 * self.plan.jobs:
                    request = next(requests, None)
                    exhausted = request is None
                    if request is not None:
                        under_way.add(self._submit(request))
                # A short wait, so that Ctrl-C is answered at once.
                finished, under_way = wait(under_way, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield future.result()
        finally:
            for future in under_way:
                future.cancel()

    def _submit(self, request: Request) -> Future[Answer]:
        if self.remote:
            return submit_with(self.pool, run_request, request, "path", label=request.bundle)
        return self.pool.submit(run_request, request)

    def _request(self, identity: str, *, only_code: bool = False) -> Request:
        return Request(
            *(identity, self.corpus.bundle(identity).absolute(), self.interpreter, self.side, only_code),
            ReplaySettings(self.plan.time_limit, self.plan.trusted),
        )

    def _outcome(self, identity: str) -> Outcome | None:
        return self.runs.outcome(self.run, identity, self.side)

    def _gated(self, identity: str) -> str | None:
        return self.runs.gated(self.run, identity, self.side)

    def _earlier(self, identity: str, tools: str = "") -> tuple[list[Replayed], str]:
        """Return the replays to compare with, and the headers of their torch.

        They are the baseline's of this run, else the last of any run.

        Only where code was generated, by the same tools, as often as asked for, and not by chance.
        """
        row = self.corpus.database.execute(
            "SELECT run, side, headers FROM replays WHERE bundle = ? AND tools = ? AND code != '' "
            "AND NOT (run = ? AND side = ?) ORDER BY (run = ?) DESC, id DESC LIMIT 1",
            (identity, tools or tools_of(self.interpreter), self.run.id, self.side, self.run.id),
        ).fetchone()
        replays = self.corpus.replays(row[0], identity, row[1]) if row is not None else []
        outcome = outcome_of(replays, self.plan.repeat) if replays else None
        telling = outcome is not None and outcome.result in _TELLING and outcome.code
        return (replays, row[2]) if telling else ([], "")

    def _tell(self, doing: str) -> None:
        self.progress.doing = doing or self.progress.doing
        self.on_progress(self.progress)
