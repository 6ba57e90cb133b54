"""Stopping a search from outside: Ctrl-C, the time limit, and the death of whoever started it.

Python runs a signal's handler between any two instructions, and an exception there could tear apart whatever
is being written. So a request to stop is only noted; it becomes `SearchStopped` when the search next waits
for an answer, or at once if it is waiting for one already.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from torchrepro.engine.processes.executor import Executor, Task
from torchrepro.engine.processes.outcome import Outcome
from torchrepro.nouns.errors import SearchStopped

BY_USER = "stopped by the user"
TIME_IS_UP = "the time is up"


class Stop:
    """Whether the search is to end, and why."""

    def __init__(self) -> None:
        self.reason = ""
        self._is_waiting = False
        self._is_late = False

    def listen(self) -> None:
        """From now on SIGINT is a request to stop; SIGTERM ends the process."""
        signal.signal(signal.SIGINT, self._request)
        signal.signal(signal.SIGTERM, _leave)

    def after(self, seconds: float | None) -> None:
        """Request it after so many seconds as well; None: never."""
        if seconds is not None:
            signal.signal(signal.SIGALRM, self._ring)
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def be_deaf(self) -> None:
        """The result is put in order whoever asks to stop: asking twice ends the process itself."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.reason = ""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The body only waits: a request to stop ends it at once."""
        self._is_waiting = True
        try:
            if self.reason:
                raise SearchStopped(self.reason)
            yield
        finally:
            self._is_waiting = False

    def sleep(self, seconds: float) -> None:
        with self.waiting():
            time.sleep(seconds)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        # By way of SIGINT, which is blocked where nothing may come in between (`fork_executor.py`).
        self._is_late = True
        os.kill(os.getpid(), signal.SIGINT)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.reason = self.reason or (TIME_IS_UP if self._is_late else BY_USER)
        if self._is_waiting:
            self._is_waiting = False
            raise SearchStopped(self.reason)


class StoppableExecutor:
    """Another executor, on which nobody waits once the search is to stop."""

    def __init__(self, executor: Executor, stop: Stop) -> None:
        self.workers = executor.workers
        self._executor = executor
        self._stop = stop

    def start(self, task: Task) -> None:
        self._executor.start(task)

    def wait(self) -> tuple[Task, Outcome]:
        with self._stop.waiting():
            return self._executor.wait()

    def cancel(self, task: Task) -> None:
        self._executor.cancel(task)

    def close(self) -> None:
        self._executor.close()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM, which also comes when the parent has died: what was started is ended on the way out."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)
