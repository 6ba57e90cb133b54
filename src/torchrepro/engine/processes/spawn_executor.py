"""Candidates in workers that were started afresh and are used again: where a fork is not safe.

A worker takes seconds to start, so it goes on to the next task. It is replaced after whatever may have harmed
it: a crash, a hang, a task called off, a fault of the device; and after a number of tasks, because what has
been compiled stays in memory.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrepro.engine.processes.child import Child
from torchrepro.engine.processes.executor import Pool, Run, Task, job_named
from torchrepro.engine.processes.fresh_process import start_interpreter
from torchrepro.engine.processes.limits import (
    limit_memory,
    limit_threads,
    no_core_dumps,
    thread_share,
    usable_cores,
    use_scratch,
)
from torchrepro.engine.processes.process_groups import own_signals
from torchrepro.engine.processes.reports import Outcome, Reporter, describe_error
from torchrepro.nouns.errors import HarnessError
from torchrepro.torch_api import dynamo
from torchrepro.torch_api.names import DYNAMO

_START_SECONDS = 300.0
_TASKS_PER_WORKER = 100
_ANY_SIZE = 1 << 62


@dataclass(eq=False)
class _Worker:
    """A process, the writing end of its requests, and how many tasks it has been given."""

    child: Child
    requests: int
    tasks: int = 0

    def ask(self, request: dict[str, object]) -> None:
        """Hand a request over; to one that has just died in vain, which its exit code tells."""
        line = json.dumps(request).encode() + b"\n"
        with suppress(BrokenPipeError):
            while line:
                line = line[os.write(self.requests, line) :]

    def end(self) -> None:
        os.close(self.requests)
        self.child.end()


@dataclass(eq=False)
class _WorkerRun(Run):
    worker: _Worker
    has_begun: bool = False

    def note(self, phase: str) -> None:
        """The time of a task begins with its job: the worker may have to start, and has to load the repro."""
        if phase == "start":
            self.has_begun = True
            self.started = time.monotonic()
            self.deadline = self.started + self.task.time_limit


class SpawnExecutor(Pool):
    """An `Executor` on reusable workers. `preload` names the modules that they import while they start."""

    def __init__(self, workers: int | None = None, preload: Iterable[str] = ()) -> None:
        super().__init__(workers or usable_cores())
        self._threads = thread_share(self.workers)
        self._preload = tuple(preload)
        self._idle: list[_Worker] = []
        self._wants_fresh: set[Task] = set()

    def _begin(self, task: Task) -> Run | Outcome:
        try:
            request = self._request(task)
        except Exception as exc:
            # Not every repro can be saved as a bundle. The caller is told as of any other error.
            self._remove_scratch(task)
            return Outcome(error=describe_error(exc), phase="load")
        worker = self._worker_for(task)
        worker.tasks += 1
        now = time.monotonic()
        run = _WorkerRun(task, worker.child, now, now + _START_SECONDS, worker)
        worker.child.begin_again(run.note)
        worker.ask(request)
        return run

    def _retire(self, run: Run, outcome: Outcome) -> bool:
        assert isinstance(run, _WorkerRun)
        worker, task = run.worker, run.task
        answered = worker.child.reports.answered
        if answered and not worker.child.reports.worn_out and worker.tasks < _TASKS_PER_WORKER:
            self._remove_scratch(task)
            self._idle.append(worker)
        else:
            self._abandon(run)
        if answered or outcome.timed_out:
            return True
        if worker.tasks == 1:
            if outcome.phase == "start" and not run.has_begun:
                raise HarnessError(f"a worker could not be started:\n{outcome.output_tail}")
            return True
        # What an earlier task has done to this process may have killed it. A fresh one tells.
        self._wants_fresh.add(task)
        return False

    def _abandon(self, run: Run) -> None:
        assert isinstance(run, _WorkerRun)
        self._end(run.worker)
        self._remove_scratch(run.task)

    def _clear_up(self) -> None:
        while self._idle:
            self._end(self._idle.pop())
        super()._clear_up()

    def _worker_for(self, task: Task) -> _Worker:
        """One that is idle and still alive, else a new one."""
        if task in self._wants_fresh:
            self._wants_fresh.discard(task)
            while len(self._idle) >= self.workers - len(self._runs):
                self._end(self._idle.pop())
            return self._start_worker()
        while self._idle:
            worker = self._idle.pop()
            if worker.child.process.poll() is None:
                return worker
            self._end(worker)
        return self._start_worker()

    def _start_worker(self) -> _Worker:
        reading_end, writing_end = os.pipe()
        try:
            child = start_interpreter(
                "torchrepro.engine.processes.spawn_executor",
                # What can be imported here can be imported there.
                {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                arguments=(str(reading_end), *self._preload),
                pass_fds=(reading_end,),
            )
        except BaseException:
            os.close(writing_end)
            raise
        finally:
            os.close(reading_end)
        self._ready().watch(child.process.pid)
        return _Worker(child, writing_end)

    def _end(self, worker: _Worker) -> None:
        worker.end()
        self._ready().forget(worker.child.process.pid)

    def _request(self, task: Task) -> dict[str, object]:
        """What a worker is told of a task; its repro is in a bundle."""
        from torchrepro.bundle.load import trust_own
        from torchrepro.bundle.read import read_manifest
        from torchrepro.script.save_bundle import save_bundle

        self._ready()
        scratch = self._scratch_of(task)
        scratch.mkdir()
        bundle = save_bundle(task.repro, scratch / "bundle", size_cap=_ANY_SIZE)
        return {
            "job": task.job,
            "bundle": str(bundle),
            "trusted": trust_own(read_manifest(bundle)),
            "payload": dict(task.payload),
            "scratch": str(scratch / "tmp"),
            "threads": self._threads,
            "memory_limit": task.memory_limit,
        }


def main() -> None:
    report_to, requests_from = int(sys.argv[1]), int(sys.argv[2])
    own_signals()
    no_core_dumps()
    for descriptor in (report_to, requests_from):
        os.set_inheritable(descriptor, False)
    for module in sys.argv[3:]:
        importlib.import_module(module)
    reporter = Reporter(report_to)
    # The end of the requests is the end of the process that sends them, or its wish.
    with os.fdopen(requests_from) as requests:
        for line in requests:
            request = json.loads(line)
            reporter.answer(lambda request=request: _work(request, reporter))  # type: ignore[misc]
            _forget()
    os._exit(0)


def _work(request: dict[str, Any], reporter: Reporter) -> Any:
    from torchrepro.bundle.load import load_bundle

    reporter.phase("load")
    use_scratch(request["scratch"])
    limit_threads(request["threads"])
    repro = load_bundle(Path(request["bundle"]), trusted=request["trusted"])
    reporter.phase("start")  # from here on it is as in a forked child
    limit_memory(request["memory_limit"])
    try:
        return job_named(request["job"])(repro, request["payload"], reporter.phase)
    finally:
        limit_memory(None)
        if _device_is_lost():
            reporter.send(worn_out=True)


def _device_is_lost() -> bool:
    """Whether a kernel has failed in such a way that everything on the device fails from now on."""
    import torch

    from torchrepro.torch_api.generators import accelerators, is_device_fault, is_initialised

    for kind in accelerators():
        if is_initialised(kind):
            try:
                torch.get_device_module(kind).synchronize()
            except RuntimeError as exc:
                if is_device_fault(exc):
                    return True
                raise
    return False


def _forget() -> None:
    """Let the next job find what a fresh process has, but for the imports."""
    import torch

    if DYNAMO in sys.modules:
        dynamo.reset()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
