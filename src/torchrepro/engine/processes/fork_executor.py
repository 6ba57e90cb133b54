"""Candidates in forked children of this process: each starts as warm as its parent, for milliseconds.

The repro is handed over by being there: a child has all that its parent had in memory. The caller has
made sure that a fork is safe (`fork_safety.py`); it is checked again before each.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from typing import NoReturn, TextIO

from torchrepro.engine.processes.child import Child, reports_and_output
from torchrepro.engine.processes.executor import Job, Pool, Run, Task, job_named
from torchrepro.engine.processes.fork_safety import CannotFork, fork, why_not_fork
from torchrepro.engine.processes.limits import (
    limit_memory,
    limit_threads,
    no_core_dumps,
    thread_share,
    usable_cores,
    use_scratch,
)
from torchrepro.engine.processes.process_groups import ForkedProcess, die_with, own_signals
from torchrepro.engine.processes.reports import Outcome, Reporter


class ForkExecutor(Pool):
    """An `Executor` whose tasks each run in a forked child of this process."""

    def __init__(self, workers: int | None = None) -> None:
        super().__init__(workers or usable_cores())
        self._threads = thread_share(self.workers)

    def _begin(self, task: Task) -> Run:
        job = job_named(task.job)  # here, so that no child has to import it
        unsafe = why_not_fork()
        if unsafe:
            raise CannotFork(f"this process cannot be forked any more: {unsafe}")
        guard = self._ready()
        started = time.monotonic()
        parent = os.getpid()
        with reports_and_output() as (reading_end, writing_end, output):
            # What is buffered here would be written by the child as well.
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            pid = fork()
            if pid == 0:
                self._be_child(task, job, parent, writing_end, output.fileno())
            child = Child(ForkedProcess(pid), reading_end, output)
        guard.watch(pid)
        return Run(task, child, started, started + task.time_limit)

    def _retire(self, run: Run, outcome: Outcome) -> bool:
        self._abandon(run)
        return True

    def _abandon(self, run: Run) -> None:
        run.child.end()
        self._ready().forget(run.child.process.pid)
        self._remove_scratch(run.task)

    def _be_child(self, task: Task, job: Job, parent: int, writing_end: int, output: int) -> NoReturn:
        reporter = Reporter(writing_end)

        def work() -> object:
            die_with(parent)
            os.setsid()
            own_signals()
            _redirect(output)
            for run in self._runs.values():
                run.child.let_go()
            self._ready().let_go()
            use_scratch(str(self._scratch_of(task)))
            no_core_dumps()
            limit_threads(self._threads)
            limit_memory(task.memory_limit)
            return job(task.repro, task.payload, reporter.phase)

        try:
            reporter.answer(work)
        finally:
            # No interpreter teardown: a library that crashes at exit must not overwrite the answer, and what
            # the parent was about to do must not happen twice.
            os._exit(0)


def _redirect(output: int) -> None:
    """Read nothing, print to the file. New stream objects: the old ones may belong to a test runner."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (for the life of the process)
    sys.stdout = _writing_to(1)
    sys.stderr = _writing_to(2)
    if faulthandler.is_enabled():
        faulthandler.enable()  # to the new stream


def _writing_to(descriptor: int) -> TextIO:
    # By lines: the last words before a crash are the ones that count.
    return open(descriptor, "w", buffering=1, closefd=False, errors="backslashreplace")
