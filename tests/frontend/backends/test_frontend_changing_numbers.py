"""Numbers that are others in each call: after a few captures Python runs what reads them, graphs the rest."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

import torchrepro
from torchrepro.frontend.runtime.cache import LIMIT, CaptureLimitWarning

CALLS = 4 * LIMIT


class Calls:
    """A function under a backend that counts what it compiles and runs."""

    def __init__(self, function: Any, **options: Any) -> None:
        self.compiled = self.ran = 0
        self.warned: list[str] = []
        self._call = torchrepro.trace(function, backend=self._compile, **options)

    def _compile(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        self.compiled += 1

        def run(*args: Any) -> Any:
            self.ran += 1
            return graph(*args)

        return run

    def __call__(self, *args: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = self._call(*args)
        self.warned += [str(each.message) for each in caught if each.category is CaptureLimitWarning]
        return result


def inputs(number: int) -> torch.Tensor:
    return torch.randn(2, 3, generator=torch.Generator().manual_seed(number))


def check(function: Any, calls: Iterable[tuple[Any, ...]], twin: Any = None) -> Calls:
    """Each call gives what plain Python gives, and late ones still run graphs."""
    traced, twin = Calls(function), function if twin is None else twin
    for args in calls:
        before = traced.ran
        found, expected = traced(*args), twin(*args)
        assert type(found) is type(expected)
        assert torch.equal(found, expected) if isinstance(found, torch.Tensor) else found == expected
        assert traced.ran > before, "Python alone ran it"
    return traced


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.step = 0

    def forward(self, x: torch.Tensor) -> Any:
        y = self.linear(x).relu()
        self.step += 1
        if self.step % 3 == 0:
            y = y * 2
        rate = self.step / 10
        return (y.sin() * rate).cos()


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Counting()
        self.last = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.inner(x.sin())).cos()


@pytest.mark.parametrize("kind", [Counting, Around])
def test_a_module_that_counts_its_calls_keeps_its_graphs(kind: type[nn.Module]) -> None:
    module = kind()
    twin = copy.deepcopy(module)
    traced = check(module, ((inputs(number),) for number in range(CALLS)), twin)
    assert traced.compiled <= 3 * LIMIT
    counter: Any = module if isinstance(module, Counting) else module.inner
    assert counter.step == CALLS


def test_the_warning_names_the_number() -> None:
    traced = Calls(Counting())
    for number in range(CALLS):
        traced(inputs(number))
    (warning,) = traced.warned
    assert "self.step: is 8, was 7" in warning
    assert "and 5 more" in warning
    assert "Python runs what reads a number that changes" in warning


def test_a_number_from_a_tensor_and_what_is_made_of_it() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        value = x.sum().item()
        y = x.sin() + 1
        double = value * 2
        return (y * double).cos() + value

    assert check(function, ((inputs(number),) for number in range(CALLS))).compiled <= 2 * LIMIT


def test_an_argument_that_changes() -> None:
    def function(x: torch.Tensor, number: int, name: str) -> torch.Tensor:
        y = x.sin()
        for _ in range(number % 3):
            y = y + number
        return y.cos() + len(name)

    calls = ((inputs(number), number, f"call {number}" * number) for number in range(CALLS))
    assert check(function, calls).compiled <= 2 * LIMIT


def test_a_number_is_used_in_every_place_of_the_language() -> None:
    def helper(x: torch.Tensor, *numbers: int, scale: float = 1.0) -> torch.Tensor:
        return x.tanh() * sum(numbers) * scale

    def function(x: torch.Tensor, number: int) -> Any:
        part = x.sin() + 1
        table: dict[Any, Any] = {number: part, "name": f"{number:03d}"}
        try:
            part = x / (1 // (number % 2))
        except ZeroDivisionError:
            part = x.exp()
        with torch.no_grad():
            part = part + number
        listed = [part * each for each in range(2, 2 + number % 2)]
        first, *_, last = [number, 1, number + 1]
        chosen = x if number > 5 and first < last else -x
        return helper(chosen, number, last, scale=number / 2) + table[number] + part + sum(listed)

    check(function, ((inputs(number), number) for number in range(CALLS)))


def test_a_number_in_a_global_and_in_a_closure() -> None:
    counts = {"global": 0}

    def make() -> Callable[[torch.Tensor], torch.Tensor]:
        seen = 0

        def function(x: torch.Tensor) -> torch.Tensor:
            nonlocal seen
            seen += 1
            counts["global"] += 2
            return x.sin() * seen + counts["global"]

        return function

    traced, expected = Calls(make()), make()
    found = [traced(inputs(number)) for number in range(CALLS)]
    assert counts["global"] == 2 * CALLS
    counts["global"] = 0
    assert all(torch.equal(each, expected(inputs(number))) for number, each in enumerate(found))
    assert traced.ran >= CALLS


def test_a_number_that_comes_to_rest_is_right_again() -> None:
    def function(x: torch.Tensor, number: int) -> torch.Tensor:
        return x.sin() * number

    numbers = [*range(CALLS), *[7] * 5, *range(5)]
    check(function, ((inputs(place), number) for place, number in enumerate(numbers)))


def test_what_is_to_be_one_graph_is_not_broken_by_a_number() -> None:
    def function(x: torch.Tensor, number: int) -> torch.Tensor:
        return x.sin() * number

    traced = Calls(function, fullgraph=True)
    for number in range(CALLS):
        assert torch.equal(traced(inputs(number), number), function(inputs(number), number))
    (warning,) = traced.warned
    assert "Python runs it from now on" in warning


def test_gradients_go_through_what_python_runs() -> None:
    module = Counting()
    twin, traced = copy.deepcopy(module), Calls(module)
    for number in range(CALLS):
        for each in (twin, traced):
            each(inputs(number)).sum().backward()
    assert torch.equal(module.linear.weight.grad, twin.linear.weight.grad)  # type: ignore[arg-type]
