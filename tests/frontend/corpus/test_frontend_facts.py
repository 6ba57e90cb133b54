"""The yardstick itself: what counts as a difference between two runs, and what does not."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.frontend.corpus.registry import all_cases
from torchrepro.hunt.observation import facts_of, first_difference


def difference(make: Callable[[], Any], other: Callable[[], Any]) -> str | None:
    return first_difference(facts_of({"result": make()}), facts_of({"result": other()}))


SHARED = torch.ones(2)
DIFFERENT: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "a bit": (lambda: torch.tensor([0.1]), lambda: torch.tensor([0.1]).nextafter(torch.tensor(1.0))),
    "the sign of zero": (lambda: torch.tensor([0.0]), lambda: torch.tensor([-0.0])),
    "a dtype": (lambda: torch.ones(2), lambda: torch.ones(2, dtype=torch.float64)),
    "a shape": (lambda: torch.ones(2, 1), lambda: torch.ones(1, 2)),
    "a stride": (lambda: torch.ones(2, 2), lambda: torch.ones(2, 2).t()),
    "requires_grad": (lambda: torch.ones(2), lambda: torch.ones(2, requires_grad=True)),
    "a gradient": (lambda: _with_gradient(1.0), lambda: _with_gradient(2.0)),
    "a parameter": (lambda: torch.ones(2), lambda: torch.nn.Parameter(torch.ones(2), requires_grad=False)),
    "a list for a tuple": (lambda: [1], lambda: (1,)),
    "an ordered dict": (lambda: {"a": 1}, lambda: OrderedDict(a=1)),
    "the order of keys": (lambda: {"a": 1, "b": 1}, lambda: {"b": 1, "a": 1}),
    "True for 1": (lambda: True, lambda: 1),
    "1.0 for 1": (lambda: 1.0, lambda: 1),
    "one object twice": (lambda: [SHARED, SHARED], lambda: [SHARED, SHARED.clone()]),
    "shared memory": (lambda: [SHARED, SHARED.view(2)], lambda: [SHARED, SHARED.clone().view(2)]),
    "an attribute": (lambda: _with_attribute(1), lambda: _with_attribute(2)),
    "a closure": (lambda: _closure(1), lambda: _closure(2)),
    "an iterator's place": (lambda: iter([1, 2]), lambda: _started([1, 2])),
    "an error's argument": (lambda: ValueError(1), lambda: ValueError(2)),
    "a buffer": (lambda: torch.nn.BatchNorm1d(1), lambda: _trained(torch.nn.BatchNorm1d(1))),
}


def _with_gradient(value: float) -> torch.Tensor:
    leaf = torch.ones(2, requires_grad=True)
    (leaf * value).sum().backward()
    return leaf


def _with_attribute(value: int) -> Any:
    holder = type("Holder", (), {})()
    holder.value = value
    return holder


def _closure(value: int) -> Callable[[], int]:
    return lambda: value


def _started(items: list[int]) -> Any:
    iterator = iter(items)
    next(iterator)
    return iterator


def _trained(module: torch.nn.Module) -> torch.nn.Module:
    module(torch.tensor([[1.0], [2.0]]))
    return module


@pytest.mark.parametrize("name", DIFFERENT)
def test_this_is_a_difference(name: str) -> None:
    make, other = DIFFERENT[name]
    assert difference(make, other) is not None
    assert difference(make, make) is None


def test_nan_equals_itself() -> None:
    assert difference(lambda: torch.tensor([float("nan")]), lambda: torch.tensor([float("nan")])) is None


def test_an_error_that_was_not_expected_is_told_first() -> None:
    expected, found = facts_of({"result": 1}), facts_of({"error": ValueError("why")})
    assert "raised ValueError: str 'why'" in (first_difference(expected, found) or "")


def test_every_theme_has_cases() -> None:
    themes = {case.theme for case in all_cases()}
    assert {"arithmetic", "classes", "modules", "breaking", "generators"} <= themes
    assert all(sum(case.theme == theme for case in all_cases()) >= 10 for theme in themes)
