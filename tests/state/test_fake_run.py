"""A run on fake tensors tells sizes, writes and draws, and leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from torchrepro.nouns.repro import Repro
from torchrepro.state.fake_run import OperatorLog, run_on_fakes


@torch.fx.wrap
def users_own(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def of(function: object, *inputs: torch.Tensor) -> Repro:
    return Repro(torch.fx.symbolic_trace(function), inputs)  # type: ignore[arg-type]


def test_values_are_known_by_node_and_by_name() -> None:
    run = run_on_fakes(of(lambda x: torch.relu(x).sum(0), torch.ones(2, 3)))
    assert run.complete
    assert run.by_name["relu"].shape == (2, 3)
    assert run.output.shape == (3,)


def test_what_raises_is_kept_with_its_node() -> None:
    run = run_on_fakes(of(lambda x: x @ x, torch.ones(2, 3)))
    assert not run.complete
    assert isinstance(run.raised, RuntimeError)
    assert run.node is not None
    assert run.node.name == "matmul"


@pytest.mark.parametrize("user_code", [False, True])
def test_code_of_the_user_runs_only_if_asked_for(user_code: bool) -> None:
    run = run_on_fakes(of(lambda x: users_own(torch.relu(x)), torch.ones(2)), user_code=user_code)
    assert run.complete is user_code
    assert run.raised is None
    assert "relu" in run.by_name


def test_a_log_tells_operators_writes_and_draws() -> None:
    log = OperatorLog()
    given = torch.ones(2), torch.ones(2)
    run = run_on_fakes(of(lambda x, y: x.add_(1) + y + torch.rand_like(y), *given), log=log)
    assert run.mutated == {0}
    assert run.random
    assert torch.ops.aten.add_.Tensor in log.ops
    assert torch.equal(given[0], torch.ones(2)), "nothing is computed"


def test_decompositions_replace_an_operator_in_the_log() -> None:
    log = OperatorLog({torch.ops.aten.relu.default: lambda x: torch.clamp(x, 0)})
    run_on_fakes(of(lambda x: torch.relu(x), torch.ones(2)), log=log)
    assert log.ops == [torch.ops.aten.clamp.default]


def test_modes_generators_and_the_default_dtype_stay_as_they_were() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    graph.output(graph.call_function(torch.add, (x, graph.call_function(torch.rand, (2,)))))
    repro = Repro(torch.fx.GraphModule({}, graph), (torch.ones(2),))
    repro = replace(repro, ambient=replace(repro.ambient, default_dtype="float64"))
    before = torch.get_rng_state()
    run = run_on_fakes(repro)
    assert run.output.dtype is torch.float64
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() is torch.float32
    assert torch.equal(torch.get_rng_state(), before)


def test_a_wrapper_subclass_which_has_no_memory_of_its_own_can_be_run() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    wrapped = TwoTensor(torch.ones(3), torch.zeros(3))
    run = run_on_fakes(of(lambda x: torch.relu(x), wrapped), log=OperatorLog(), user_code=True)
    assert run.complete
    assert run.mutated == frozenset()
