"""Where candidates run: tasks, the `Executor` interface, and what all executors on this machine share.

A task is a job on a repro. A forked child finds the repro in its memory; a worker that was started otherwise
is given a bundle of it. The caller cannot tell the difference. There are no threads: the caller also waits.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torchrepro.engine.processes.reports import Outcome
    from torchrepro.nouns.repro import Repro
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Self

from torchrepro.engine.processes.child import Child, listen
from torchrepro.engine.processes.leftovers import Guard
from torchrepro.engine.processes.process_groups import undisturbed
from torchrepro.engine.processes.reports import Outcome
from torchrepro.nouns.errors import HarnessError

Job = Callable[["Repro", Mapping[str, Any], Callable[[str], None]], Any]
"""`function(repro, payload, phase)`: calls `phase(name)` as phases begin, and returns plain data."""

_numbers = itertools.count(1)


@dataclass(frozen=True, eq=False)
class Task:
    """A job on a repro, and what it may use. Each task is itself alone: two alike are two tasks."""

    job: str
    """`package.module:function` of a `Job`."""
    repro: Repro
    payload: Mapping[str, Any] = field(default_factory=dict)
    time_limit: float = 300.0
    memory_limit: int | None = None
    """Bytes that the child may have in addition to what it starts with; None: no limit."""
    number: int = field(default_factory=lambda: next(_numbers))


class Executor(Protocol):
    """Runs tasks, at most `workers` at a time. Used from one thread, and closed at the end."""

    workers: int

    def start(self, task: Task) -> None:
        """Run a task as soon as a worker is free. Never blocks."""

    def wait(self) -> tuple[Task, Outcome]:
        """The next task to end, whichever it is, and how. Only while tasks are under way."""

    def cancel(self, task: Task) -> None:
        """Forget a task, and end it with everything that it has started. Unknown tasks are passed over."""

    def close(self) -> None:
        """End everything: no process, no temporary file is left."""


def job_named(name: str) -> Callable[..., Any]:
    """Import and return the function that `package.module:function` names."""
    module, _, function = name.partition(":")
    named: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return named


@dataclass(eq=False)
class Run:
    """A task under way in a process."""

    task: Task
    child: Child
    started: float
    deadline: float

    def outcome(self) -> Outcome | None:
        return self.child.outcome(self.started, self.deadline)


class Pool(ABC):
    """An `Executor` on processes of this machine. It can be used again after an interruption."""

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise ValueError(f"an executor has at least one worker, not {workers}")
        self.workers = workers
        self._queue: deque[Task] = deque()
        self._runs: dict[Task, Run] = {}
        self._ended: deque[tuple[Task, Outcome]] = deque()
        self._guard: Guard | None = None
        self._scratch: Path | None = None

    def start(self, task: Task) -> None:
        self._queue.append(task)
        self._fill()

    def wait(self) -> tuple[Task, Outcome]:
        try:
            return self._next()
        except BaseException:
            # Ctrl-C, or a bug: leave no candidate running that no caller waits for.
            self.cancel_all()
            raise

    def cancel(self, task: Task) -> None:
        self._queue = deque(other for other in self._queue if other is not task)
        self._ended = deque(ended for ended in self._ended if ended[0] is not task)
        if task in self._runs:
            with undisturbed():
                self._abandon(self._runs.pop(task))

    def cancel_all(self) -> None:
        """End all tasks; the executor can be given others."""
        self._queue.clear()
        self._ended.clear()
        with undisturbed():
            while self._runs:
                _, run = self._runs.popitem()
                self._abandon(run)

    def close(self) -> None:
        with undisturbed():
            self.cancel_all()
            self._clear_up()

    def _clear_up(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None
        if self._guard is not None:
            self._guard.close()
            self._guard = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _begin(self, task: Task) -> Run | Outcome:
        """Give a task a process; where it cannot be given to one, that is how it ended."""

    @abstractmethod
    def _retire(self, run: Run, outcome: Outcome) -> bool:
        """A task has ended: see to its process. False: that was no answer, the task is to be run again."""

    @abstractmethod
    def _abandon(self, run: Run) -> None:
        """End a task that is still under way, with its process."""

    def _scratch_of(self, task: Task) -> Path:
        """A directory for the temporary files of a task, which goes with the task."""
        assert self._scratch is not None
        return self._scratch / str(task.number)

    def _remove_scratch(self, task: Task) -> None:
        shutil.rmtree(self._scratch_of(task), ignore_errors=True)

    def _ready(self) -> Guard:
        """The scratch directory and its guard exist."""
        if self._guard is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="torchrepro-"))
            self._guard = Guard(str(self._scratch))
        return self._guard

    def _next(self) -> tuple[Task, Outcome]:
        while self._queue or self._runs or self._ended:
            self._fill()
            if self._ended:
                return self._ended.popleft()
            for run in list(self._runs.values()):
                outcome = run.outcome()
                if outcome is not None and self._take(run, outcome):
                    self._fill()  # the next one need not wait for what is made of the answer
                    return run.task, outcome
            runs = self._runs.values()
            listen([run.child for run in runs], min((run.deadline for run in runs), default=0.0))
        raise HarnessError("waiting for a task, and none is under way")

    def _take(self, run: Run, outcome: Outcome) -> bool:
        with undisturbed():
            del self._runs[run.task]
            if self._retire(run, outcome):
                return True
            self._queue.appendleft(run.task)
            return False

    def _fill(self) -> None:
        while self._queue and len(self._runs) < self.workers:
            with undisturbed():
                task = self._queue.popleft()
                begun = self._begin(task)
                if isinstance(begun, Run):
                    self._runs[task] = begun
                else:
                    self._ended.append((task, begun))
