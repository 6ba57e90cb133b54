"""A small training on several gloo ranks, in which one rank has a broken compiler or is killed.

`python ddp_program.py LAUNCH WORLD_SIZE GUILTY HOW`, where LAUNCH is `spawn` (fresh processes, as torchrun
starts them) or `fork` (as a notebook does) and HOW is `compile_error`, `runtime_error` or `killed`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys

import torch
import torch._inductor.compile_fx
import torch.distributed as dist
from torch._inductor import config
from torch.nn.parallel import DistributedDataParallel


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(8, 8)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).relu())


@torch.compile
def loss_of(outputs: torch.Tensor) -> torch.Tensor:
    return outputs.square().mean()


def train(rank: int, world_size: int, address: str, guilty: int, how: str) -> None:
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    if rank == guilty and how != "killed":
        config.cpp.inject_relu_bug_TESTING_ONLY = how
    torch.manual_seed(0)
    model = torch.compile(DistributedDataParallel(Net()))
    for _ in range(2):
        outputs = model(torch.ones(4, 8))
        if rank == guilty and how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        loss_of(outputs).backward()
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    launch, world_size, guilty, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    context = multiprocessing.get_context(launch)
    ranks = [
        context.Process(target=train, args=(rank, world_size, address, guilty, how))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    print("exit codes", [process.exitcode for process in ranks])
    sys.exit(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    main()
