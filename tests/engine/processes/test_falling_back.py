"""A search goes on with fresh workers once its own process cannot be forked any more."""

from __future__ import annotations

from collections import deque

import pytest
from executing import task_of

from torchrepro.engine.processes.choose_executor import FallingBack
from torchrepro.engine.processes.executor import Task
from torchrepro.engine.processes.fork_safety import CannotFork
from torchrepro.engine.processes.reports import Outcome


class Answering:
    """Answers in order; raises `CannotFork` from a number of starts on, at once or in the next wait."""

    workers = 2

    def __init__(self, forks: int, *, late: bool = False) -> None:
        self._left = forks
        self._late = late
        self._under_way: deque[Task] = deque()
        self._broken = False
        self.closed = False

    def start(self, task: Task) -> None:
        if self._left == 0:
            self._broken = True
            if not self._late:
                raise CannotFork("it has a thread")
            return
        self._left -= 1
        self._under_way.append(task)

    def wait(self) -> tuple[Task, Outcome]:
        if self._broken:
            self._under_way.clear()
            raise CannotFork("it has a thread")
        return self._under_way.popleft(), Outcome(result=id(self))

    def cancel(self, task: Task) -> None:
        if task in self._under_way:
            self._under_way.remove(task)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("late", [False, True])
def test_what_is_under_way_begins_anew_elsewhere(late: bool) -> None:
    forking, spawning = Answering(2, late=late), Answering(100)
    executor = FallingBack(forking, lambda: spawning)
    tasks = [task_of("passes") for _ in range(4)]
    executor.start(tasks[0])
    assert executor.wait()[0] is tasks[0]
    for task in tasks[1:]:
        executor.start(task)
    executor.cancel(tasks[2])
    ended = [executor.wait() for _ in range(2)]
    assert {task for task, _ in ended} == {tasks[1], tasks[3]}
    assert {outcome.result for _, outcome in ended} == {id(spawning)}
    assert forking.closed
    executor.close()
    assert spawning.closed


def test_as_long_as_it_can_fork_nothing_else_is_started() -> None:
    def never() -> Answering:
        raise AssertionError

    executor = FallingBack(Answering(10), never)
    executor.start(task_of("passes"))
    executor.wait()
    executor.close()
