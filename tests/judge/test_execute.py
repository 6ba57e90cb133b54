"""One run of one model: what is seen of it, and that nothing of the user's is touched."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from torchrepro import reduce_to_scalar_loss, run_fwd_maybe_bwd
from torchrepro.judge.compare import weights_like


class Counting(nn.Module):
    """Writes to a buffer, to a parameter and to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, scratch: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        scratch.mul_(2)
        return (x * self.weight).sin()


def test_the_users_module_and_inputs_are_left_as_they_were() -> None:
    model, x, scratch = Counting(), torch.ones(3), torch.ones(2)
    run = run_fwd_maybe_bwd(model, (x, scratch))
    assert model.calls.item() == 0
    assert model.weight.grad is None
    assert torch.equal(scratch, torch.ones(2))
    assert run.state["calls"].item() == 1
    assert torch.equal(run.inputs[1], torch.full((2,), 2.0))
    assert run.changed == {"calls"}


def test_gradients_of_parameters_and_inputs_are_kept() -> None:
    x = torch.ones(3, requires_grad=True)
    run = run_fwd_maybe_bwd(Counting(), (x, torch.ones(2)))
    expected = weights_like(x) * torch.ones(3).cos()  # of the loss: each element has a weight of its own
    torch.testing.assert_close(run.gradients["weight"], expected)
    torch.testing.assert_close(run.gradients["inputs[0]"], expected)
    assert x.grad is None


def test_gradients_of_an_input_that_is_no_leaf_are_kept() -> None:
    x = torch.ones(3, requires_grad=True) * 2
    run = run_fwd_maybe_bwd(lambda a: a.exp(), (x,))
    torch.testing.assert_close(run.gradients["inputs[0]"], weights_like(x) * x.detach().exp())


def test_forward_only_runs_no_backward() -> None:
    run = run_fwd_maybe_bwd(Counting(), (torch.ones(3), torch.ones(2)), only_fwd=True)
    assert not any(gradient is not None for gradient in run.gradients.values())


def test_without_cloning_the_originals_are_used() -> None:
    model, scratch = Counting(), torch.ones(2)
    run_fwd_maybe_bwd(model, (torch.ones(3), scratch), disable_clone=True)
    assert model.calls.item() == 1
    assert torch.equal(scratch, torch.full((2,), 2.0))


def test_two_inputs_over_one_memory_stay_so() -> None:
    base = torch.zeros(4)

    def write_through(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b.clone()

    run = run_fwd_maybe_bwd(write_through, (base[:3], base[1:]))
    assert torch.equal(run.outputs, torch.tensor([1.0, 1.0, 0.0]))
    assert torch.equal(base, torch.zeros(4))


def test_a_boxed_callable_gets_one_list() -> None:
    def boxed(args: list[torch.Tensor]) -> torch.Tensor:
        return args.pop() + 1

    boxed._boxed_call = True  # type: ignore[attr-defined]
    assert run_fwd_maybe_bwd(boxed, (torch.zeros(2),)).outputs.sum() == 2


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
def test_the_boxed_flag_that_aot_copies_to_an_unboxed_function_is_seen_through(backend: str) -> None:
    graph = torch.fx.symbolic_trace(lambda x: (x.sin(),))
    compiled = torch._dynamo.lookup_backend(backend)(graph, [torch.ones(2)])
    assert compiled._boxed_call, "if this fails, torch has mended it"
    assert torch.equal(run_fwd_maybe_bwd(compiled, (torch.ones(2),)).outputs[0], torch.ones(2).sin())


def test_a_compiled_module_is_put_back_and_not_copied() -> None:
    model = Counting()
    compiled = torch.compile(model, backend="eager")
    run = run_fwd_maybe_bwd(compiled, (torch.ones(3), torch.ones(2)))
    assert run.state["calls"].item() == 1
    assert model.calls.item() == 0
    assert model.weight.grad is None


@dataclass
class Result:
    value: torch.Tensor
    rest: Any


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: t,
        lambda t: (t, None),
        lambda t: [1, {"a": t}],
        lambda t: Result(t, "text"),
        lambda t: SimpleNamespace(cache=[t]),
        lambda t: torch.distributions.Normal(t, torch.ones(3)),
        lambda t: (torch.arange(3), t.to(torch.complex64)),
        lambda t: t.to(torch.float8_e5m2),
    ],
)
def test_any_result_is_reduced_to_a_scalar_that_reaches_its_tensor(wrap: Any) -> None:
    leaf = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    loss = reduce_to_scalar_loss(wrap(leaf * 2))
    assert loss.dim() == 0
    loss.backward()
    assert leaf.grad is not None
    assert leaf.grad.count_nonzero() == 3


def test_a_result_without_floating_tensors_cannot_be_reduced() -> None:
    with pytest.raises(TypeError, match="floating point"):
        reduce_to_scalar_loss(torch.arange(3))


@pytest.mark.parametrize("fn", [lambda x: x.softmax(-1), lambda x: nn.functional.layer_norm(x, (8,))])
def test_the_loss_does_not_hide_gradients_as_a_sum_would(fn: Any) -> None:
    plain = torch.randn(2, 8, dtype=torch.float64, requires_grad=True)
    fn(plain).sum().backward()
    assert plain.grad is not None
    assert plain.grad.abs().max() < 1e-12, "this is what a plain sum shows"
    weighted = plain.detach().clone().requires_grad_()
    reduce_to_scalar_loss(fn(weighted)).backward()
    assert weighted.grad is not None
    assert weighted.grad.abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_the_weights_are_exact_in_every_dtype(dtype: torch.dtype) -> None:
    from torchrepro.judge.compare import weights_like

    exact = weights_like(torch.empty(1000, dtype=torch.float64))
    assert torch.equal(exact.to(dtype).double(), exact)
    assert len(set(exact.tolist())) == 8
