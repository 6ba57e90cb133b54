"""Training through captured regions: losses, gradients, parameters, buffers are eager's after each step."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from tests.frontend.backends.frontend_models import MODELS, Mlp, Printing, batches, trained
from torchrepro.judge.compare import same
from torchrepro.judge.models import eager_randomness
from torchrepro.second_opinion.api import trace

OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam)
names = functools.partial(pytest.mark.parametrize, ids=lambda each: each.__name__)


def assert_same(expected: list[Any], found: list[Any], **rule: Any) -> None:
    for number, (right, got) in enumerate(zip(expected, found, strict=True), start=1):
        comparison = same(right, got, **rule)
        assert comparison, f"step {number}: {comparison}"


@names("optimizer", OPTIMIZERS)
@names("make", MODELS)
def test_training_is_eagers_bit_for_bit(make: type[nn.Module], optimizer: Any) -> None:
    expected = trained(make, lambda model: model, optimizer)
    found = trained(make, lambda model: trace(model, backend="eager"), optimizer)
    assert_same(expected, found, strict=True)


@names("make", MODELS)
def test_training_with_a_graph_for_backward(make: type[nn.Module]) -> None:
    expected = trained(make, lambda model: model, torch.optim.Adam)
    found = trained(make, lambda model: trace(model, backend="aot_eager"), torch.optim.Adam)
    # Adam divides by the size of a gradient: rounding in a gradient near zero becomes a step of any size.
    assert_same(expected, found, tol=1e-4)


@pytest.mark.slow
@names("make", (Printing,))
def test_training_with_inductor(make: type[nn.Module]) -> None:
    expected = trained(make, lambda model: model, torch.optim.SGD)
    with eager_randomness():
        found = trained(make, lambda model: trace(model, backend="inductor"), torch.optim.SGD)
    assert_same(expected, found, tol=1e-4)


@names("make", MODELS)
def test_gradients_add_up_over_several_calls(make: type[nn.Module]) -> None:
    expected = trained(make, lambda model: model, torch.optim.SGD, accumulate=2)
    found = trained(make, lambda model: trace(model, backend="eager"), torch.optim.SGD, accumulate=2)
    assert_same(expected, found, strict=True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_backward_goes_through_several_regions_to_the_input(backend: str) -> None:
    def run(call: Any) -> Any:
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()

        def function(x: torch.Tensor) -> torch.Tensor:
            y = model(x)
            print(end="")
            y = torch.sin(y) * x
            if y.sum() > 100:
                return y
            return model(y) + y.detach()

        result = call(function)(x)
        result.square().sum().backward()
        return result, x.grad, model.weight.grad, model.bias.grad

    assert same(run(lambda f: f), run(lambda f: trace(f, backend=backend)), strict=backend == "eager")


def test_modes_of_training_in_turn() -> None:
    def run(capture: Any) -> list[Any]:
        torch.manual_seed(0)
        model = Mlp()
        call = capture(model)
        told = []
        for training in (True, False, True, False, True):
            call.train(training)
            with torch.set_grad_enabled(training):
                out = call(batches(1)[0][0])
            told.append((out.detach().clone(), out.requires_grad, dict(model.state_dict())))
        return told

    assert same(run(lambda m: m), run(lambda m: trace(m, backend="eager")), strict=True)


def test_a_step_of_training_as_one_function() -> None:
    """Loss, backward and optimizer inside of what is captured: Python runs what no graph takes."""

    def run(capture: Any) -> list[Any]:
        torch.manual_seed(0)
        model = Mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        call = capture(step)
        return [
            (call(x, y).detach(), {k: v.clone() for k, v in model.state_dict().items()}) for x, y in batches()
        ]

    # The optimizers of torch compute otherwise, in the last digits, when they are told of a compiler.
    assert_same(run(lambda f: f), run(lambda f: trace(f, backend="eager")), tol=1e-4)


def test_the_gradient_of_a_gradient() -> None:
    def run(capture: Any) -> Any:
        x = torch.linspace(0.1, 1, 5).requires_grad_()
        call = capture(lambda x: (x**3).sum() + torch.sin(x).sum())
        (first,) = torch.autograd.grad(call(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        return first.detach(), second

    assert same(run(lambda f: f), run(lambda f: trace(f, backend="eager")), strict=True)
