"""Warm this process up before it is forked: what every candidate would do first is done once.

A throwaway compilation imports inductor, asks g++ what it can do and finds out the CPU's vector units: a
small graph then takes a forked child 5 s instead of 45 s (torch 2.13, two busy cores). Nothing here may start
a thread, so nothing runs backward: with a GPU in the machine that starts autograd's threads.
"""

from __future__ import annotations

import torch

from torchrepro.runner.compilers import AOT_INDUCTOR

_OF_INDUCTOR = ("inductor", AOT_INDUCTOR)


def warm_up(compiler: str) -> None:
    """Compile something small, with gradients, in the way of the compiler under test."""
    torch.set_num_threads(1)  # a team of OpenMP's threads would not survive the fork
    backend = "inductor" if compiler in _OF_INDUCTOR else "aot_eager"
    weight = torch.ones(4, 4, requires_grad=True)
    torch.compile(_throwaway, backend=backend)(torch.ones(4), weight)
    torch._dynamo.reset()


def _throwaway(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ weight).sum() + x.sin().amax()
