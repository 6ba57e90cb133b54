"""Choose the executor that a repro needs: forked children where a fork is safe, else reusable workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchrepro.engine.processes.executor import Executor, Task
from torchrepro.engine.processes.fork_executor import ForkExecutor
from torchrepro.engine.processes.fork_safety import CannotFork, prepare_to_fork, why_not_fork
from torchrepro.engine.processes.limits import usable_cores
from torchrepro.engine.processes.reports import Outcome
from torchrepro.engine.processes.spawn_executor import SpawnExecutor
from torchrepro.judge.compare import tensors_in
from torchrepro.nouns.repro import Place, Repro
from torchrepro.torch_api import pytree as pytree
from torchrepro.torch_api.names import COMPILE_FX


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


_CONTEXTS = 8
"""Workers on a device at most, by default: each has a context there, of half a gigabyte."""
_PRELOADED = ("torchrepro.execute.judge_repro", COMPILE_FX)


def executor_for(repro: Repro, workers: int | None = None) -> Executor:
    """An executor for this repro and what becomes of it. By default a worker for each core."""
    if why_not_forked(repro):
        on_device = bool(devices_of(repro))
        usual = min(usable_cores(), _CONTEXTS) if on_device else usable_cores()
        return SpawnExecutor(workers or usual, preload=_PRELOADED)
    forking = ForkExecutor(workers)
    return FallingBack(forking, lambda: SpawnExecutor(forking.workers, preload=_PRELOADED))


def why_not_forked(repro: Repro) -> str:
    """Why its candidates cannot run in forked children; empty if they can. Prepares this process for it."""
    devices = devices_of(repro)
    if devices:
        return f"it runs on {', '.join(sorted(devices))}, whose context a fork does not share"
    prepare_to_fork()
    return why_not_fork()


def devices_of(repro: Repro) -> frozenset[str]:
    """The kinds of device that a repro uses in addition to the CPU, as far as its graph and values tell."""
    held: list[Any] = [repro.inputs, repro.earlier, *repro.graph.parameters(), *repro.graph.buffers()]
    for module in repro.graph.modules():
        held += [value for value in vars(module).values() if isinstance(value, torch.Tensor)]
    found = {tensor.device.type for _, tensor in tensors_in(held)}
    for module in repro.graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                found.update(_devices_named(node))
    if repro.place is Place.BEFORE_CAPTURE:
        # The user's own code says nothing. The generators that had a state then tell what was in use.
        found.update(torch.device(name).type for name in repro.ambient.rng)
    return frozenset(found - {"cpu", "meta"})


def _devices_named(node: torch.fx.Node) -> set[str]:
    """Devices among a node's arguments; as words only where they cannot be anything else."""
    named: list[Any] = [value for value in pytree.tree_leaves((node.args, node.kwargs)) if _is_device(value)]
    if isinstance(node.kwargs.get("device"), str):
        named.append(node.kwargs["device"])
    if node.op == "call_method" and node.target in ("cuda", "xpu"):
        named.append(node.target)
    return {torch.device(value).type for value in named}


def _is_device(value: object) -> bool:
    return isinstance(value, torch.device)
