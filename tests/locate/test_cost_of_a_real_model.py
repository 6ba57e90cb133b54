"""The price that is promised: stage and op of a real model of 1,000 ops in 2·log2(ops) + 6 compiles."""

from __future__ import annotations

import math
from contextlib import closing

import pytest
import torch

from torchrepro.engine.baseline import establish
from torchrepro.engine.oracle import IsolatedOracle, Timeout
from torchrepro.engine.processes.executor import executor_for
from torchrepro.locate.context import Inquiry
from torchrepro.locate.ops import find_op
from torchrepro.locate.stages import find_stage
from torchrepro.locate.watched_graph import Watching
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Stage

BLOCKS = 112


class Model(torch.nn.Module):
    """Nine ops a block; in the middle the smallest of some bytes, which is wrong (pytorch #191499)."""

    def forward(self, x: torch.Tensor, codes: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
        for block in range(BLOCKS):
            y = torch.nn.functional.linear(x, weight)
            y = torch.nn.functional.gelu(y * 0.5) + torch.tanh(y) - torch.sigmoid(x)
            x = torch.nn.functional.layer_norm(x + y, (16,))
            if block == BLOCKS // 2:
                x = x + (codes + 1).amin() * 0.01
        return (x,)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_stage_and_op_of_a_thousand_ops() -> None:
    if not torch.__version__.startswith("2.13"):
        pytest.skip("the bug is one of torch 2.13")
    torch.manual_seed(0)
    inputs = (torch.randn(4, 16), torch.randint(20, 120, (64,), dtype=torch.uint8), torch.randn(16, 16) / 4)
    repro = Repro(torch.fx.symbolic_trace(Model()), inputs)
    assert repro.ops >= 1000
    with closing(executor_for(repro)) as executor:
        oracle = IsolatedOracle(executor, Timeout(300.0))
        original = establish(repro, oracle)
        inquiry = Inquiry(repro, original.verdict, oracle, asked=original.runs)
        stage = find_stage(inquiry).stage
        op = find_op(inquiry, Watching.of(inquiry))
    assert stage is Stage.BACKEND
    assert op is not None
    assert op.op.endswith("amin")
    assert inquiry.asked <= 2 * math.log2(repro.ops) + 6
