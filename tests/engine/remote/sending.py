"""What the tests of remote candidates share: a remote executor on an executor, and tasks for it."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torchrepro.engine.processes.child import Outcome
from torchrepro.engine.processes.executor import Executor, Task
from torchrepro.engine.processes.fresh_process import compiler_environment
from torchrepro.engine.remote.messages import Site, versions_here
from torchrepro.engine.remote.relay import relay
from torchrepro.engine.remote.remote_executor import RemoteExecutor
from torchrepro.nouns.repro import Compiler, Repro


def repro_of(*inputs: torch.Tensor) -> Repro:
    """One that needs no warm compiler."""
    graph = torch.fx.symbolic_trace(lambda *x: x[0] + 1)
    return Repro(graph, inputs or (torch.full((3,), 2.0),), compiler=Compiler("eager"))


def task(job: str, *inputs: torch.Tensor, time_limit: float = 60.0, **payload: Any) -> Task:
    return Task(job, repro_of(*inputs), payload, time_limit)


@contextmanager
def remote(
    executor: concurrent.futures.Executor, workers: int = 2, *, confined: bool = False, **versions: str
) -> Iterator[RemoteExecutor]:
    site = Site("a run", compiler_environment(), confined, {**versions_here(), **versions})
    with (
        relay(executor, site, workers) as channel,
        Executor(1) as here,
        RemoteExecutor(channel, here) as sending,
    ):
        yield sending


def run(sending: RemoteExecutor, one: Task) -> Outcome:
    sending.start(one)
    ended, outcome = sending.wait()
    assert ended is one
    return outcome
