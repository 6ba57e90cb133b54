"""Rounding that a computation amplifies is told apart from a wrong kernel, in words for everybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from wrong_compilers import watching_on

from torchrepro.locate.ops import find_op
from torchrepro.locate.sensitivity import act_of, amplification_of, find_sensitivity, words_on
from torchrepro.locate.wrong_values import error_growth
from torchrepro.nouns.repro import Repro


def amplification(function: Callable[..., Any], *inputs: Any) -> float:
    return amplification_of(Repro(torch.fx.symbolic_trace(function), inputs), {}, lambda phase: None)


def test_a_wrong_kernel_is_called_one() -> None:
    watching = watching_on(lambda x: torch.relu(x + 1) * 2, torch.rand(8), compiler="wrong_relu")
    found = find_sensitivity(watching, find_op(watching.inquiry, watching))
    assert found is not None
    assert found.node == "relu"
    assert found.factor < 2
    assert found.words == "well-conditioned: a rounding stays a rounding, so this is a wrong kernel"


def test_cancellation_is_named_where_no_kernel_is_wrong() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(x * 1e6 - torch.floor(x * 1e6))

    watching = watching_on(model, torch.rand(64) + 1, compiler="noisy", tolerance=1e-3)
    op = find_op(watching.inquiry, watching)
    assert op is None
    error_growth(watching)
    found = find_sensitivity(watching, op)
    assert found is not None
    assert found.node == "sub"
    assert found.factor > 1e5
    assert "by this subtraction: no kernel is wrong" in found.words


def test_the_factor_of_a_subtraction_is_how_much_is_lost() -> None:
    x = torch.full((1000,), 1.0)
    assert amplification(lambda a, b: a - b, x, x - 1e-4) == pytest.approx(1.4e4, rel=0.2)
    assert amplification(lambda a: a * 3, x) == pytest.approx(1.0, rel=0.1)


def test_integers_cannot_be_nudged() -> None:
    watching = watching_on(lambda x: torch.relu(x + 1) * 2, torch.arange(8), compiler="wrong_relu")
    found = find_sensitivity(watching, find_op(watching.inquiry, watching))
    assert found is not None
    assert found.factor == 0
    assert found.words == (
        "it reads no floating numbers: rounding explains nothing here, so this is a wrong kernel"
    )


def test_a_result_of_zero_says_so() -> None:
    x = torch.rand(8)
    found = amplification(lambda a, b: a - b, x, x.clone())
    assert found == float("inf")
    assert words_on(found, "this subtraction", culprit=False) == (
        "rounding alone decides the result of this subtraction"
    )


def test_steps_that_a_rounding_does_not_cross_change_nothing() -> None:
    assert amplification(lambda a: torch.floor(a), torch.tensor([0.5, 1.5])) == 0


def test_a_decision_at_its_edge_jumps() -> None:
    assert amplification(lambda a: a >= 1, torch.ones(100)) > 1e5


def test_random_numbers_are_the_same_in_every_run() -> None:
    assert amplification(lambda a: a * torch.rand_like(a), torch.ones(100)) == pytest.approx(1.0, rel=0.2)


@pytest.mark.parametrize(
    ("op", "act"),
    [
        ("aten.sub.Tensor", "this subtraction"),
        ("operator.truediv", "this division"),
        (".add_", "this addition"),
        ("torch.nn.functional.gelu", "gelu"),
        ("aten.erf.default", "erf"),
    ],
)
def test_an_op_is_called_by_what_it_does(op: str, act: str) -> None:
    assert act_of(op) == act


def test_an_error_that_amplified_rounding_does_not_explain_is_a_wrong_kernel() -> None:
    assert words_on(1e5, "this subtraction", culprit=True, explained=True) == (
        "rounding is amplified 100,000 times by this subtraction, which explains the error"
    )
    assert words_on(1e5, "this subtraction", culprit=True, explained=False).endswith("a wrong kernel")
