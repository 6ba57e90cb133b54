"""Draws are recorded in order and replayed exactly; the user's generators are left where they were."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from torchrepro.judge.op_forms import RecordRandom
from torchrepro.judge.reference import run_in_fp64
from torchrepro.nouns.errors import ReferenceUnavailable
from torchrepro.torch_api.generators import capture_rng_state, same_randomness

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def _in_place(name: str, *args: float):
    return lambda x: getattr(torch.empty_like(x), name)(*args) * x


RANDOM = {
    "dropout": lambda x: F.dropout(x, 0.5, True) * 3,
    "dropout in half": lambda x: F.dropout(x.half(), 0.5, True).float(),
    "dropout2d": lambda x: F.dropout2d(x[None, None], 0.5, True),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "native_dropout": lambda x: torch.native_dropout(x, 0.25, True)[0],
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()) * x,
    "normal": lambda x: torch.normal(x, 1.0),
    "randn_like": lambda x: torch.randn_like(x) * x,
    "rand in half": lambda x: torch.rand(3, 4, dtype=torch.float16) * x,
    "randint": lambda x: torch.randint(0, 9, (3, 4)) * x,
    "randperm": lambda x: x[:, torch.randperm(4)],
    "multinomial": lambda x: x[:, torch.multinomial(x.exp(), 3)[0]],
    "poisson": lambda x: torch.poisson(x.exp()) * x,
    "gamma": lambda x: torch._standard_gamma(x.exp()),
    "bernoulli_": _in_place("bernoulli_", 0.3),
    "normal_": _in_place("normal_"),
    "uniform_": _in_place("uniform_"),
    "exponential_": _in_place("exponential_"),
    "random_": _in_place("random_", 5),
    "out": lambda x: torch.randn(3, 4, out=torch.empty(3, 4)) * x,
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.5),
}


@pytest.mark.parametrize("name", RANDOM)
def test_a_random_function_gives_the_same_in_float64(name: str) -> None:
    function = RANDOM[name]
    with RecordRandom() as recorder:
        eager = function(X)
    assert recorder.is_random
    reference = run_in_fp64(lambda: function(X.double()), draws=recorder.draws)
    assert reference.value.dtype is torch.float64
    tolerance = 2e-3 if "half" in name else 1e-6
    torch.testing.assert_close(reference.value, eager.double(), rtol=tolerance, atol=tolerance)
    assert reference.notes == ()


@pytest.mark.parametrize("name", ["dropout", "native_dropout", "rrelu"])
def test_the_arithmetic_of_a_dropout_is_done_in_float64(name: str) -> None:
    x = X / 3
    function = RANDOM[name]
    with RecordRandom() as recorder:
        eager = function(x)
    value = run_in_fp64(lambda: function(x.double()), draws=recorder.draws).value
    kept = eager != 0
    assert (value[kept] != value[kept].float().double()).any()
    assert torch.equal(value == 0, eager == 0)


def test_in_inference_mode_the_draws_are_the_same_ones() -> None:
    with torch.inference_mode():
        with RecordRandom() as recorder:
            eager = F.dropout(X, 0.5, True)
        value = run_in_fp64(lambda: F.dropout(X.double(), 0.5, True), draws=recorder.draws).value
    torch.testing.assert_close(value.float(), eager)


def test_gradients_flow_through_replayed_dropout() -> None:
    x = X.clone().requires_grad_()
    with RecordRandom() as recorder:
        F.dropout(x * 3, 0.5, True).sum().backward()
    wide = X.double().requires_grad_()
    run_in_fp64(lambda: F.dropout(wide * 3, 0.5, True).sum().backward(), draws=recorder.draws)
    torch.testing.assert_close(wide.grad, x.grad.double())


def test_dropout_recomputed_by_a_checkpoint_is_replayed() -> None:
    from torch.utils.checkpoint import checkpoint

    def step(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x.sin(), 0.5, True).exp()

    def grad(x: torch.Tensor) -> torch.Tensor:
        checkpoint(step, x, use_reentrant=False).sum().backward()
        return x.grad

    with RecordRandom() as recorder:
        eager = grad(X.clone().requires_grad_())
    wide = X.double().requires_grad_()
    value = run_in_fp64(lambda: grad(wide), draws=recorder.draws).value
    torch.testing.assert_close(value.float(), eager)


def test_what_does_not_draw_is_not_random() -> None:
    with RecordRandom() as recorder:
        F.dropout(X, 0.5, False)
        F.rrelu(X)
        F.scaled_dot_product_attention(X[None], X[None], X[None])
        torch.nn.LSTM(4, 4, 2, dropout=0.0)
    drawn = {draw.op for draw in recorder.draws}
    assert drawn <= {"aten::uniform_"}  # the weights of the LSTM


def test_another_op_in_the_reference_makes_it_unavailable() -> None:
    with RecordRandom() as recorder:
        torch.rand(3)
    with pytest.raises(
        ReferenceUnavailable, match=r"draw 1 is aten::randn in the reference run, aten::rand in"
    ):
        run_in_fp64(lambda: torch.randn(3), draws=recorder.draws)


def test_another_shape_or_number_of_draws_makes_it_unavailable() -> None:
    with RecordRandom() as recorder:
        torch.rand(3)
    with pytest.raises(ReferenceUnavailable, match=r"shapes \[\(4,\)\] in the reference run"):
        run_in_fp64(lambda: torch.rand(4), draws=recorder.draws)
    with pytest.raises(ReferenceUnavailable, match="drew 0 times, the eager run 1 times"):
        run_in_fp64(lambda: None, draws=recorder.draws)
    with pytest.raises(ReferenceUnavailable, match="draws more often"):
        run_in_fp64(lambda: (torch.rand(3), torch.rand(3)), draws=recorder.draws)


def test_a_mismatch_is_reported_even_if_the_function_swallows_it() -> None:
    def swallow() -> None:
        try:
            torch.rand(3)
        except Exception:
            return

    with pytest.raises(ReferenceUnavailable, match="draws more often"):
        run_in_fp64(swallow, draws=())


def test_without_draws_the_reference_says_that_it_drew_for_itself() -> None:
    assert "1 random ops drew new numbers" in run_in_fp64(lambda: torch.rand(3)).notes[0]


def _numbers(generator: torch.Generator) -> tuple[object, ...]:
    return (
        torch.rand(2).tolist(),
        random.random(),
        np.random.rand(2).tolist(),
        torch.rand(2, generator=generator).tolist(),
    )


def test_the_same_state_gives_the_same_numbers_and_the_users_stream_goes_on() -> None:
    generator = torch.Generator().manual_seed(1)
    state = capture_rng_state(generator)
    with same_randomness(state):
        first = _numbers(generator)
    with same_randomness(state):
        again = _numbers(generator)
    assert first == again
    assert _numbers(generator) == first  # as if nothing had been drawn inside


def test_the_stream_goes_on_after_an_exception() -> None:
    state = capture_rng_state()

    def draw_and_fail() -> None:
        with same_randomness(state):
            torch.rand(3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), state.devices["cpu"])


def test_the_reference_run_leaves_the_generators_alone() -> None:
    state = capture_rng_state()
    run_in_fp64(lambda: (torch.rand(3), random.random(), np.random.rand()))
    after = capture_rng_state()
    assert torch.equal(state.devices["cpu"], after.devices["cpu"])
    assert state.python == after.python
    assert np.array_equal(state.numpy[1], after.numpy[1])
    assert state.numpy[2] == after.numpy[2]
