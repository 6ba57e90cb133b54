"""What the tests of the executors share: a repro, tasks on it, and counts of what is left behind."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from torchrepro.engine.processes.child import Outcome
from torchrepro.engine.processes.executor import Executor, Task
from torchrepro.nouns.repro import Repro


def small_repro() -> Repro:
    return Repro(torch.fx.symbolic_trace(lambda x: x + 1), (torch.full((3,), 2.0),))


def task_of(job: str, *, time_limit: float = 60.0, memory_limit: int | None = None, **payload: Any) -> Task:
    return Task(f"candidate_jobs:{job}", small_repro(), payload, time_limit, memory_limit)


def run(
    executor: Executor, job: str, *, time_limit: float = 60.0, memory_limit: int | None = None, **payload: Any
) -> Outcome:
    task = task_of(job, time_limit=time_limit, memory_limit=memory_limit, **payload)
    executor.start(task)
    ended, outcome = executor.wait()
    assert ended is task
    return outcome


def processes_with(mark: str) -> int:
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return sum(mark in line for line in found.stdout.splitlines())


def children() -> set[int]:
    """Of this process, dead or alive."""
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    }


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def nothing_left_behind(directory: Path) -> Iterator[None]:
    """No process, no descriptor and no temporary file more after the body than before it."""
    before = children(), descriptors(), tempfile.tempdir
    tempfile.tempdir = str(directory)
    try:
        yield
        assert children() <= before[0]
        assert descriptors() == before[1]
        assert os.listdir(directory) == []
    finally:
        tempfile.tempdir = before[2]


def soon(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
