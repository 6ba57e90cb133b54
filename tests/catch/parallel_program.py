"""A small training on two gloo ranks, parallel in one of several ways, with a sound or a broken compiler.

`python parallel_program.py SCENE HOW`: HOW is `healthy`, `accuracy` (the compiler's `relu` is wrong) or
`compile_error`.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch._inductor import config
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WORLD = 2


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu())


def collective(rank: int) -> None:
    """Collectives in the graph, one of them on the result of the broken op, and none with gradients."""

    def mean_and_parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = collectives.all_reduce(x.relu() - 0.5, "sum", dist.group.WORLD)
        parts = collectives.all_gather_tensor(x.sin(), 0, dist.group.WORLD)
        share = collectives.reduce_scatter_tensor(parts + 1, "sum", 0, dist.group.WORLD)
        return total / WORLD, parts.cos(), share * 2

    compiled = torch.compile(mean_and_parts)
    for step in range(2):
        torch.manual_seed(10 * step + rank)
        total, parts, share = compiled(torch.randn(6))
        assert parts.shape == (12,)
        assert share.shape == total.shape == (6,)


def ddp(rank: int) -> None:
    _train(torch.compile(DistributedDataParallel(Net())), rank)


def fsdp2(rank: int) -> None:
    model = Net()
    model.first.compile()
    model.compile()
    for part in (model.first, model):
        fully_shard(part, mesh=init_device_mesh("cpu", (WORLD,)))
    _train(model, rank)


def tensor_parallel(rank: int) -> None:
    plan = {"first": ColwiseParallel(), "last": RowwiseParallel()}
    model = parallelize_module(Net(), init_device_mesh("cpu", (WORLD,)), plan)
    _train(torch.compile(model), 0)  # all ranks see the same data


def _train(model: torch.nn.Module, rank: int) -> None:
    for step in range(2):
        torch.manual_seed(10 * step + rank)
        model(torch.randn(3, 8)).square().mean().backward()


SCENES: dict[str, Callable[[int], None]] = {
    scene.__name__: scene for scene in (collective, ddp, fsdp2, tensor_parallel)
}


def play(rank: int, scene: str, how: str, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD)
    if how != "healthy":
        config.cpp.inject_relu_bug_TESTING_ONLY = how
    torch.manual_seed(0)
    SCENES[scene](rank)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=play, args=(rank, *sys.argv[1:3], f"{folder}/store"))
            for rank in range(WORLD)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
    print("exit codes", [process.exitcode for process in ranks])
    sys.exit(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    main()
