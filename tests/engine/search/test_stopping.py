"""A request to stop ends a wait at once, and never anything else."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from torchrepro.engine.processes.child import Outcome
from torchrepro.engine.processes.executor import Executor, Task
from torchrepro.engine.search.setup import Stop
from torchrepro.nouns.errors import SearchStopped


@pytest.fixture
def stop() -> Iterator[Stop]:
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    found = Stop()
    found.listen()
    yield found
    found.ignore_interrupts()
    for number, handler in former.items():
        signal.signal(number, handler)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


TASK = Task("package.module:job", None)  # type: ignore[arg-type]


class Slow(Executor):
    """An executor on which everything takes ten seconds, and which Ctrl-C reaches while it waits."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(3, waiting=stop.waiting)
        self.started: list[Task] = []

    def start(self, task: Task) -> None:
        interrupt()
        self.started.append(task)

    def _next(self) -> tuple[Task, Outcome]:
        interrupt()
        time.sleep(10)
        raise AssertionError("nobody should wait so long")


def test_outside_of_a_wait_it_is_only_noted(stop: Stop) -> None:
    interrupt()
    assert stop.reason == "stopped by the user"
    with pytest.raises(SearchStopped, match="by the user"):
        stop.sleep(0)


def test_a_wait_ends_at_once(stop: Stop) -> None:
    executor = Slow(stop)
    began = time.monotonic()
    with pytest.raises(SearchStopped):
        executor.wait()
    assert time.monotonic() - began < 5


def test_a_request_while_a_task_starts_waits_for_the_next_wait(stop: Stop) -> None:
    executor = Slow(stop)
    executor.start(TASK)
    assert executor.started == [TASK]  # not torn apart by the signal that came in between
    with pytest.raises(SearchStopped, match="stopped by the user"):
        executor.wait()


def test_the_time_limit_is_a_request_like_any_other(stop: Stop) -> None:
    stop.after(0.05)
    with pytest.raises(SearchStopped, match="the time is up"):
        stop.sleep(10)


def test_no_time_limit_is_none(stop: Stop) -> None:
    stop.after(None)
    stop.sleep(0.01)
    assert stop.reason == ""


def test_while_the_result_is_put_in_order_nobody_is_heard(stop: Stop) -> None:
    interrupt()
    stop.ignore_interrupts()
    interrupt()
    began = time.monotonic()
    stop.sleep(0.05)  # neither raises nor returns early
    assert time.monotonic() - began >= 0.05
    assert stop.reason == ""


def test_sigterm_unwinds_so_that_everything_is_ended(stop: Stop) -> None:
    with pytest.raises(SystemExit) as left:
        os.kill(os.getpid(), signal.SIGTERM)
    assert left.value.code == 128 + signal.SIGTERM
