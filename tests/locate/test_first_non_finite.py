"""The first value that is not finite is found on both sides; a mask of infinities is not taken for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from wrong_compilers import watching_on

from torchrepro.locate.wrong_values import find_birth
from torchrepro.nouns.results import Birth


def born_in(model: Callable[..., Any], *inputs: Any, compiler: str) -> Birth | None:
    watching = watching_on(model, *inputs, compiler=compiler)
    watching.watch(watching.values)
    return find_birth(watching)


def test_only_the_compiled_side_divides_by_zero() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(1 / torch.relu(x + 1) + 2)

    assert born_in(model, torch.rand(8), compiler="log_of_nothing") == Birth(eager="", compiled="truediv")


def test_a_mask_of_infinities_is_meant() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        masked = torch.sin(x).masked_fill(x > 0.5, float("-inf"))
        return torch.softmax(masked, 0) + 1 / torch.relu(x + 1)

    given = torch.linspace(0, 1, 8)
    assert born_in(model, given, compiler="log_of_nothing") == Birth(eager="", compiled="truediv")


def test_an_overflow_that_float64_does_not_have_is_a_birth_in_eager() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + 1) + torch.atan(torch.exp(x * 100))

    assert born_in(model, torch.ones(8), compiler="wrong_relu") == Birth(eager="exp", compiled="exp")


def test_a_nan_that_is_given_is_born_in_the_input() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.sin(x) + 2)

    given = torch.rand(8)
    given[3] = float("nan")
    assert born_in(model, given, compiler="wrong_relu") == Birth(eager="x", compiled="x")


def test_where_all_is_finite_nothing_is_born() -> None:
    assert born_in(lambda x: torch.relu(x + 1), torch.rand(8), compiler="wrong_relu") is None
