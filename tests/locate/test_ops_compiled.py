"""The culprit op of a real compiler, in children of this process as `torchrepro locate` does it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import torch

from torchrepro.engine.oracle import IsolatedOracle, Timeout
from torchrepro.engine.processes.executor import executor_for
from torchrepro.locate.context import Inquiry
from torchrepro.locate.ops import find_op
from torchrepro.locate.sensitivity import find_sensitivity
from torchrepro.locate.watched_graph import Watching
from torchrepro.locate.wrong_values import error_growth, find_birth
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.results import Way

pytestmark = pytest.mark.slow

WRONG_RELU = Compiler(options={"cpp.inject_relu_bug_TESTING_ONLY": "accuracy"})


@contextmanager
def inquiry_on(repro: Repro) -> Iterator[Inquiry]:
    importlib.import_module("torch._inductor.compile_fx")  # once, and not in each child
    with closing(executor_for(repro, 1)) as executor:
        oracle = IsolatedOracle(executor, Timeout(75.0))
        ((_, verdict),) = oracle.judge([repro])
        assert verdict.fails, verdict
        yield Inquiry(repro, verdict, oracle)


@pytest.mark.thorough
def test_a_wrong_relu_among_two_hundred_ops_is_found_in_two_compiles() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        # One kernel, and every value read once: with two readers inductor computes it twice, and so on.
        for layer in range(50):
            x = torch.cos(torch.sin(x) * 1.2) + 0.1
            if layer == 47:
                x = torch.relu(x)
        return x

    torch.manual_seed(0)
    repro = Repro(torch.fx.symbolic_trace(model), (torch.randn(8, 8),), compiler=WRONG_RELU)
    with inquiry_on(repro) as inquiry:
        watching = Watching.of(inquiry)
        op = find_op(inquiry, watching)
        assert op is not None
        assert (op.node, op.op, op.way) == ("relu", "torch.relu", Way.WINDOW)
        growth = error_growth(watching)
        found = find_sensitivity(watching, op)
        assert inquiry.asked == 2
    assert len(growth) == repro.ops > 200
    assert all(point.compiled is not None for point in growth)
    assert found is not None
    assert "wrong kernel" in found.words
    assert find_birth(watching) is None
