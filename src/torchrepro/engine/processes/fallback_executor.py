"""Forked children as long as a fork is safe; once it is not, workers that are started afresh.

A library may start a thread at any moment of a long search. What is under way then begins anew on a worker:
whoever asks notices nothing but the seconds that the workers take to start.
"""

from __future__ import annotations

from collections.abc import Callable

from torchrepro.engine.processes.executor import Executor, Task
from torchrepro.engine.processes.fork_safety import CannotFork
from torchrepro.engine.processes.outcome import Outcome


class FallingBack:
    """An `Executor`: the first one until it raises `CannotFork`, then the one that `otherwise` makes."""

    def __init__(self, forking: Executor, otherwise: Callable[[], Executor]) -> None:
        self.workers = forking.workers
        self._executor = forking
        self._otherwise = otherwise
        self._tasks: dict[Task, None] = {}

    def start(self, task: Task) -> None:
        self._tasks[task] = None
        try:
            self._executor.start(task)
        except CannotFork:
            self._fall_back()
        except BaseException:
            self._tasks.pop(task, None)
            raise

    def wait(self) -> tuple[Task, Outcome]:
        try:
            task, outcome = self._wait()
        except BaseException:
            self._tasks.clear()  # the executor has ended them all
            raise
        self._tasks.pop(task, None)
        return task, outcome

    def cancel(self, task: Task) -> None:
        self._tasks.pop(task, None)
        self._executor.cancel(task)

    def close(self) -> None:
        self._tasks.clear()
        self._executor.close()

    def _wait(self) -> tuple[Task, Outcome]:
        try:
            return self._executor.wait()
        except CannotFork:
            self._fall_back()
        return self._executor.wait()

    def _fall_back(self) -> None:
        self._executor.close()
        self._executor = self._otherwise()
        for task in self._tasks:
            self._executor.start(task)
