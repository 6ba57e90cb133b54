"""Reusable processes for tasks that cannot be forked, because they run on a device.

A fresh worker imports torch and its compiler for ten seconds (measured with torch 2.11 on the host of an
H200). One that is forked from a process that has imported them, and has not used a device yet, has a context
on the device after 0.3 s and its first kernel a second later. So a search process forks its workers ahead,
before it loads a repro onto the device itself, and keeps them for the searches that follow in the process.

A worker is replaced after anything that may have harmed it (a crash, a hang, a cancelled task, a fault of the
device), and after a number of tasks, because what has been compiled stays in memory.
"""

from __future__ import annotations

import os
import sys

from torchrepro.engine.processes.child import Child
from torchrepro.engine.processes.fork_safety import start_fork, why_not_fork
from torchrepro.engine.processes.fresh_process import start_interpreter
from torchrepro.engine.processes.signals import die_with, undisturbed

_TASKS_PER_WORKER = 100


class Workers:
    """Idle processes that run one job after the other. Has to be closed, or its process has to exit."""

    def __init__(self) -> None:
        self._idle: list[Child] = []
        self._unused: list[Child] = []
        self._cold: list[Child] = []
        self._warm_up: dict[str, object] = {}

    def fork_ahead(self, count: int, *, prepared: int, job: str, payload: dict[str, object]) -> str:
        """Fork workers, each of which runs a job that warms it up; return why that is not safe.

        The first `prepared` ones run it at once, the others before their first task. An error in the job ends
        a worker, and its first task then runs in another one.
        """
        reason = why_not_fork(driver_may_run=True)
        if reason:
            return reason
        parent = os.getpid()

        def begin() -> None:
            die_with(parent)
            self.let_go()

        for _ in range(count):
            with undisturbed():
                self._unused.append(start_fork({}, begin))
        self._warm_up = {"job": job, "payload": payload, "silent": True}
        for worker in self._unused[:prepared]:
            worker.ask(self._warm_up)
        self._cold = self._unused[prepared:]
        return ""

    def take(self, *, fresh: bool = False, most: int = 1) -> Child:
        """Return a worker that is alive: one that is warm, else one forked ahead, else a new one.

        A `fresh` one has run no task; at most `most` are then alive with it.
        """
        while fresh and len(self._idle) >= most:
            self._idle.pop().end()
        for workers in (self._unused,) if fresh else (self._idle, self._unused):
            while workers:
                worker = workers.pop(-1 if workers is self._idle else 0)
                if worker in self._cold:
                    self._cold.remove(worker)
                    worker.ask(self._warm_up)
                if worker.process.poll() is None:
                    return worker
                worker.end()
        # The worker gets the import path of this process.
        return start_interpreter({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})

    def put_back(self, worker: Child) -> None:
        """Keep a worker for the next task, unless its last one may have harmed it."""
        if worker.answered and not worker.is_worn_out and worker.jobs < _TASKS_PER_WORKER:
            self._idle.append(worker)
        else:
            worker.end()

    def close(self) -> None:
        """End all workers."""
        with undisturbed():
            for workers in (self._idle, self._unused):
                while workers:
                    workers.pop().end()

    def let_go(self) -> None:
        """Close the descriptors of all workers: a forked child does this for its siblings."""
        for worker in (*self._idle, *self._unused):
            worker.let_go()
