"""Where candidates run: the same interface whether in forked children, reused workers or on a cluster.

A task is a job on a repro. A forked child finds the repro in its memory; a worker that was started otherwise
is given a bundle of it. Whoever asks cannot tell the difference.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torchrepro.engine.processes.outcome import Outcome
    from torchrepro.nouns.repro import Repro

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


def job_named(name: str) -> Job:
    """The job that a task names."""
    module, _, function = name.partition(":")
    job: Job = getattr(importlib.import_module(module), function)
    return job
