"""Two models on the same inputs: the same, different, or not comparable; an exception is never "same"."""

from __future__ import annotations

import functools
import os
import random
from typing import Any

import pytest
import torch
from torch import nn

from torchrepro import same, same_two_models
from torchrepro.nouns.errors import ReferenceError64
from torchrepro.nouns.verdict import Blame, Difference


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.second(torch.relu(self.norm(self.first(x))))}


def inputs() -> tuple[torch.Tensor]:
    return (torch.linspace(-1, 1, 20).reshape(5, 4),)


def test_a_model_is_the_same_as_itself_and_as_its_compiled_self() -> None:
    model = Net()
    assert same_two_models(model, model, inputs())
    compared = same_two_models(model, torch.compile(model, backend="aot_eager"), inputs())
    assert compared
    paths = {leaf.path for leaf in compared}
    assert 'out["y"]' in paths
    assert 'grad["first.weight"]' in paths
    assert 'state["norm.running_mean"]' in paths


def test_a_compiled_side_that_raises_is_never_the_same() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("boom")

    compared = same_two_models(torch.sin, broken, inputs())
    assert not compared
    assert compared.leaves[0].difference is Difference.RAISED
    assert "boom" in str(compared)
    assert compared.blamed is Blame.COMPILED


def test_an_error_that_only_eager_raises_is_a_difference_as_well() -> None:
    def raising(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not positive")

    compared = same_two_models(raising, torch.sin, inputs())
    assert not compared
    assert "not positive" in str(compared)


def test_a_wrong_gradient_alone_is_found() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * ctx.saved_tensors[0].cos() * 1.05

    x = (torch.linspace(0, 1, 6).requires_grad_(),)
    compared = same_two_models(torch.sin, Wrong.apply, x)
    assert [leaf.path for leaf in compared.differing] == ['grad["inputs[0]"]']
    assert same_two_models(torch.sin, Wrong.apply, x, only_fwd=True)


def test_eager_that_is_wrong_is_the_one_blamed() -> None:
    def overflowing(x: torch.Tensor) -> torch.Tensor:
        return x * x / x

    compared = same_two_models(overflowing, torch.clone, (torch.tensor([1e30, 2.0]),))
    assert compared
    assert compared.blamed is Blame.EAGER


def test_what_differs_from_itself_is_not_comparable() -> None:
    def unsteady(x: torch.Tensor) -> torch.Tensor:
        return x + int.from_bytes(os.urandom(4), "big")

    compared = same_two_models(unsteady, unsteady, inputs())
    assert not compared
    assert "non-deterministic" in str(compared)


def test_a_model_that_differs_from_itself_does_not_hide_an_error_of_the_compiled_side() -> None:
    def unsteady(x: torch.Tensor) -> torch.Tensor:
        return x + int.from_bytes(os.urandom(4), "big")

    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("boom")

    assert "boom" in str(same_two_models(unsteady, broken, inputs()))


def test_rounding_noise_of_eager_is_noted_and_not_blamed() -> None:
    signs = iter([1.0, -1.0] * 10)

    def nearly_steady(x: torch.Tensor) -> torch.Tensor:
        return x + next(signs) * 1e-9 if x.dtype is torch.float64 else x * (1 + next(signs) * 6e-8)

    compared = same_two_models(nearly_steady, torch.clone, inputs())
    assert compared
    assert any("bitwise" in note for note in compared.notes)


ORDERS = random.Random(0)


@torch.library.custom_op("judge_tests::sum_in_any_order", mutates_args=())
def sum_in_any_order(x: torch.Tensor) -> torch.Tensor:
    """Add as atomic additions on a GPU do: in another order each time, rounding after each."""
    return functools.reduce(torch.add, ORDERS.sample(x.unbind(-1), x.shape[-1]))


def sum_of_centred(x: torch.Tensor) -> torch.Tensor:
    """Compute zero up to rounding: as does the gradient of a bias before a batch norm."""
    result: torch.Tensor = sum_in_any_order(x - x.mean(-1, keepdim=True))
    return result


def test_eager_that_varies_by_rounding_alone_is_compared() -> None:
    x = torch.randn(16, 512, generator=torch.Generator().manual_seed(0))
    assert not same(sum_of_centred(x), sum_of_centred(x))  # by far more than the rule tolerates
    healthy = same_two_models(sum_of_centred, lambda x: (x - x.mean(-1, keepdim=True)).sum(-1), (x,), True)
    assert healthy
    assert any("not bitwise deterministic" in note for note in healthy.notes)
    wrong = same_two_models(sum_of_centred, lambda x: sum_of_centred(x) + 1e-2, (x,), True)
    assert wrong.differing[0].difference is Difference.VALUE


def test_draws_that_cannot_be_reproduced_are_not_taken_for_rounding() -> None:
    def reseeds(x: torch.Tensor) -> torch.Tensor:
        torch.seed()
        return x + torch.randn_like(x)

    assert "non-deterministic" in str(same_two_models(reseeds, reseeds, inputs(), True))


def test_a_race_is_not_taken_for_rounding_where_float64_agrees_with_itself() -> None:
    winners = iter([0, 1, 0, 0, 0, 0, 0])  # eager, eager, float64, compiled, eager, float64

    def last_writer_wins(x: torch.Tensor) -> torch.Tensor:
        return x[..., next(winners)].clone()

    compared = same_two_models(last_writer_wins, last_writer_wins, inputs(), True)
    assert "non-deterministic" in str(compared)


def test_no_float64_reference_is_said_or_is_an_error_if_required() -> None:
    def only_single(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not torch.float32:
            raise TypeError("float32 please")
        return x.sin()

    compared = same_two_models(only_single, only_single, inputs())
    assert compared
    assert any("float64" in note and "float32 please" in note for note in compared.notes)
    with pytest.raises(ReferenceError64, match="float32 please"):
        same_two_models(only_single, only_single, inputs(), require_fp64=True)


def test_the_options_change_what_counts() -> None:
    def close(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.nextafter(x.sin(), x), torch.zeros(2, dtype=torch.int64)

    def plain(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), torch.ones(2, dtype=torch.int64)

    assert not same_two_models(plain, close, inputs())
    assert same_two_models(plain, close, inputs(), ignore_non_fp=True)
    assert not same_two_models(plain, close, inputs(), ignore_non_fp=True, strict=True)
    assert same_two_models(torch.sin, lambda x: x.sin() * 1.01, inputs(), tol=0.1)
    assert not same_two_models(torch.sin, lambda x: x.sin() * 1.01, inputs(), tol=0.001)
    assert same_two_models(torch.sin, lambda x: x.sin() * 1.01, inputs(), cos_similarity=True)


def test_keyword_arguments_are_passed_and_compared() -> None:
    def writes(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        out.copy_(x)
        return x.sum()

    def forgets(x: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        return x.sum()

    out = torch.zeros(5, 4)
    compared = same_two_models(writes, forgets, inputs(), kwargs={"out": out})
    assert not compared
    assert "out" in compared.differing[0].path
    assert not out.any(), "the caller's own tensor is not touched"


def test_the_callers_generators_modules_and_gradients_are_as_before() -> None:
    model = nn.Sequential(Net().first, nn.Dropout(0.5))
    before, state = torch.get_rng_state(), {k: v.clone() for k, v in model.state_dict().items()}
    assert same_two_models(model, torch.compile(model, backend="eager"), inputs())
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_draws_with_pythons_random_is_compared_too() -> None:
    import random

    def draws(x: torch.Tensor) -> torch.Tensor:
        return x * random.random()

    assert same_two_models(draws, draws, inputs())


def test_mixed_precision_without_a_truth_is_judged_by_its_coarsest_dtype() -> None:
    def mixed(x: torch.Tensor, more: float = 0.0) -> torch.Tensor:
        if x.dtype is not torch.float32:
            raise TypeError("no float64 today")
        return (x.bfloat16() @ x.bfloat16().t()).float() * (1 + more)

    x = (torch.randn(8, 8, generator=torch.Generator().manual_seed(0)),)
    compared = same_two_models(mixed, lambda x: (x @ x.t()).bfloat16().float(), x)
    assert compared, compared
    assert not same_two_models(mixed, lambda x: mixed(x, 0.2), x), "but a wrong scale is still found"


def test_an_input_that_no_dispatch_mode_can_stand_is_compared_without_one() -> None:
    zero = torch._efficientzerotensor((3,))

    def last(t: torch.Tensor) -> torch.Tensor:
        return t[-1] + 10

    assert same_two_models(last, lambda t: last(t), (zero,), only_fwd=True)
