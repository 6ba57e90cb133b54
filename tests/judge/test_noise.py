"""Rounding noise: what rounds moves by its roundings, what does not round keeps its bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchrepro import same_two_models
from torchrepro.judge import noise
from torchrepro.judge.noise import RoundingNoise, is_elementwise

aten = torch.ops.aten
seeds = st.integers(0, 2**16)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16])


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def under_noise(run: Callable[[], Any], amplitude: float = 64.0, seed: int = 1, sign: float = 1.0) -> Any:
    with RoundingNoise(amplitude, seed, sign):
        return run()


EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "view": lambda x: x.t().reshape(-1),
    "double": lambda x: x * 2,
    "mask": lambda x: x * (x > 0),
    "where": lambda x: torch.where(x > 0, x, -x),
    "sort": lambda x: x.sort().values,
    "max": lambda x: x.amax(1),
    "pooling": lambda x: F.max_pool1d(x, 2),
    "cat": lambda x: torch.cat([x, x]),
    "fill": lambda x: torch.full_like(x, 0.1),
    "embedding": lambda x: F.embedding(torch.tensor([1, 0]), x),
    "integers": lambda x: (x > 0).sum(1),
}


@given(st.sampled_from(sorted(EXACT)), seeds, dtypes)
def test_an_op_that_does_not_round_keeps_its_bits(name: str, seed: int, dtype: torch.dtype) -> None:
    x = numbers(6, 8, seed=seed, dtype=dtype)
    assert torch.equal(under_noise(lambda: EXACT[name](x)), EXACT[name](x))


@given(st.sampled_from([torch.sin, torch.exp, lambda x: x * 0.3, lambda x: x / 3]), seeds, seeds)
def test_noise_is_a_few_roundings_around_the_exact_result_and_mirrored(
    op: Callable[[Tensor], Tensor], seed: int, noise_seed: int
) -> None:
    x = numbers(100, seed=seed)
    exact = op(x.double())
    plus, minus = (under_noise(lambda: op(x), 16.0, noise_seed, sign).double() for sign in (1.0, -1.0))
    ulp = torch.finfo(torch.float32).eps * exact.abs()
    assert ((plus - exact).abs() <= 17 * ulp).all()
    assert ((plus - exact).abs() > 2 * ulp).any()
    assert ((plus + minus - 2 * exact).abs() <= 4 * ulp).all()


@pytest.mark.parametrize(
    "factory",
    [lambda: torch.linspace(-3, 3, 31), lambda: torch.arange(-3, 3, 0.1)],
    ids=["linspace", "arange"],
)
def test_numbers_that_a_factory_computes_get_the_noise_of_its_start(factory: Callable[[], Tensor]) -> None:
    """Near zero, `start + index * step` is as exact as the start is: compiled code differs by several ulp."""
    moved = (under_noise(factory, 4.0).double() - factory().double()).abs()
    small = factory().abs().clamp(min=1e-12) < 0.5
    assert (moved[small] > 4 * torch.finfo(torch.float32).eps * factory()[small].abs()).any()
    assert torch.equal(under_noise(lambda: torch.arange(-3.0, 3.0)), torch.arange(-3.0, 3.0))


@pytest.mark.parametrize(
    "op",
    [
        lambda x: F.layer_norm(x, (64,)),
        lambda x: torch.addmm(x, x, x),
        lambda x: x.softmax(-1),
        lambda x: (x.float() / 3).to(x.dtype),
    ],
    ids=["layer_norm", "addmm", "softmax", "cast"],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_result_of_steps_in_float32_is_rounded_to_a_half_type_once(
    op: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    x = numbers(64, 64, dtype=dtype)
    exact = op(x.double())
    noise, error = (
        ((made.double() - exact) / exact.abs().clamp(min=1e-3)).square().mean().sqrt()
        for made in (under_noise(lambda: op(x), 1.0), op(x))
    )
    assert error < noise < 2.2 * error


def test_without_amplitude_nothing_changes() -> None:
    layer, x = torch.nn.Linear(8, 8), numbers(4, 8)

    def gradient() -> Tensor:
        layer.zero_grad()
        layer(x).tanh().sum().backward()
        assert layer.weight.grad is not None
        return layer.weight.grad.clone()

    assert torch.equal(under_noise(gradient, 0.0), gradient())
    assert not torch.equal(under_noise(gradient, 1.0), gradient())


def test_in_place_ops_get_noise_and_operands_do_not() -> None:
    x, y = numbers(50), numbers(50, seed=1)
    before = y.clone()
    with RoundingNoise(64.0, 1):
        x.mul_(y)
    assert not torch.equal(x, numbers(50) * before)
    assert torch.equal(y, before)


def test_random_draws_are_left_alone() -> None:
    def draw() -> Tensor:
        torch.manual_seed(0)
        return torch.rand(10)

    assert torch.equal(under_noise(draw), draw())


def channel_sums(amplitude: float) -> Tensor:
    """Return sums of what is zero in exact arithmetic: gradients behind a batch norm, over each channel."""
    x, upstream = numbers(4096, 8, seed=2).add(3.0).requires_grad_(), numbers(4096, 8, seed=3).abs()
    with RoundingNoise(amplitude, 1):
        F.batch_norm(x, None, None, training=True).backward(upstream)
    assert x.grad is not None
    return x.grad.double().sum(0).abs()


def test_noise_in_the_steps_of_an_op_moves_many_elements_the_same_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    coherent = channel_sums(16.0)
    monkeypatch.setattr(noise, "decomposition_of", lambda op: None)
    independent = channel_sums(16.0)
    assert coherent.mean() > 3 * independent.mean()


def test_steps_that_are_wrong_do_not_show_in_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
        return 5 * x.exp() / x.exp().sum(dim, keepdim=True)

    def failing(*args: Any) -> Tensor:
        raise AssertionError("these steps do not cover the call")

    x = numbers(8, 16)
    for steps in (wrong, failing):
        monkeypatch.setattr(noise, "decomposition_of", lambda op, steps=steps: steps)
        noisy = under_noise(lambda: x.softmax(1), 4.0)
        torch.testing.assert_close(noisy, x.softmax(1), rtol=1e-4, atol=1e-6)
        assert not torch.equal(noisy, x.softmax(1))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (aten.sin.default, True),
        (aten.hardtanh_backward.default, True),
        (aten.hardshrink_backward.default, True),
        (aten.elu_backward.default, True),
        (aten.adaptive_max_pool2d_backward.default, False),
        (aten._adaptive_avg_pool2d_backward.default, False),
        (aten._cdist_backward.default, False),
        (aten.mm.default, False),
    ],
)
def test_an_op_is_elementwise_or_not(op: Any, expected: bool) -> None:
    assert is_elementwise(op) is expected


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.adaptive_max_pool2d(x, 2),
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: F.max_pool2d(x, 2),
        lambda x: torch.cdist(x, x.flip(-1)),
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        lambda x: F.cross_entropy(x.flatten(1), torch.tensor([1, 2])),
        lambda x: F.scaled_dot_product_attention(x, x, x),
    ],
)
def test_the_inquiry_survives_gradients_of_all_forms(pool: Callable[[Tensor], Tensor]) -> None:
    x = numbers(2, 3, 4, 4).requires_grad_()
    found = same_two_models(lambda x: pool(x.exp()), lambda x: pool(x.exp()) * 1.5, (x,))
    assert not found
    assert not any("could not be ruled out" in note for note in found.notes), found.notes


def test_steps_with_booleans_or_other_shapes_among_their_results_do_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def other(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
        return x > 0, x[:1], x.to(torch.complex64)

    monkeypatch.setattr(noise, "decomposition_of", lambda op: other)
    x, one = numbers(8, 16), torch.ones(16)
    noisy = under_noise(lambda: F.layer_norm(x, (16,), one, one), 4.0)
    torch.testing.assert_close(noisy, F.layer_norm(x, (16,), one, one), rtol=1e-4, atol=1e-5)


def test_tangents_that_are_zero_without_memory_stay_so() -> None:
    """Forward mode makes tensors of zeros that have no memory: to read it is a segmentation fault."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return (torch.relu(x) ** 3).sum()

    x = torch.tensor([0.3, -0.7, 1.1])
    with RoundingNoise(1.0, 1):
        noisy = torch.func.hessian(f)(x)
    torch.testing.assert_close(noisy, torch.func.hessian(f)(x))
