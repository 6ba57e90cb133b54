"""The error of every value is known on both sides, in the order of the graph, however few fit into memory."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from synthetic_values import CountingOracle, random_graph
from synthetic_values import watching_on as counted
from wrong_compilers import watching_on

from torchrepro.locate.op_jobs import oddities, relative_error
from torchrepro.locate.watched_graph import Odd
from torchrepro.locate.wrong_values import error_growth, steepest


def model(x: torch.Tensor) -> torch.Tensor:
    return torch.cos(torch.relu(torch.sin(x) + 2) * 3)


def test_the_error_begins_at_the_wrong_op() -> None:
    inputs = torch.rand(8, generator=torch.Generator().manual_seed(0))
    watching = watching_on(model, inputs, compiler="wrong_relu")
    growth = error_growth(watching)
    assert [point.node for point in growth] == ["sin", "add", "relu", "mul", "cos"]
    assert all(point.eager is not None and point.eager < 1e-6 for point in growth)
    assert [bool(point.compiled and point.compiled > 1e-3) for point in growth] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert watching.inquiry.asked == 1


def test_a_large_graph_is_seen_in_at_most_four_compiles_and_evenly() -> None:
    oracle = CountingOracle()
    growth = error_growth(counted(random_graph(1000, 500, 0), oracle, at_a_time=100))
    assert len(growth) == 1000
    assert oracle.asked == 4
    known = [place for place, point in enumerate(growth) if point.compiled is not None]
    assert len(known) == pytest.approx(400, abs=40)
    assert max(later - earlier for earlier, later in pairwise(known)) <= 10


def test_where_it_grows_most_is_the_step_and_not_the_largest_error() -> None:
    inputs = torch.rand(8, generator=torch.Generator().manual_seed(0))
    watching = watching_on(model, inputs, compiler="wrong_relu")
    error_growth(watching)
    assert steepest(watching) in ("relu", "cos")


@pytest.mark.parametrize(
    ("value", "truth", "error"),
    [
        ([1.0, 2.0], [1.0, 4.0], 0.5),
        ([0.0, 0.0], [0.0, 0.0], 0.0),
        ([1e-9], [0.0], 1.0),
        ([math.nan, 1.0], [1.0, 1.0], math.inf),
        ([math.inf], [1e39], 0.0),
        ([math.inf, 3.0], [math.inf, 4.0], 0.25),
    ],
)
def test_an_error_is_relative_to_the_largest_truth(
    value: list[float], truth: list[float], error: float
) -> None:
    assert relative_error(torch.tensor(value), torch.tensor(truth, dtype=torch.float64)) == error


def test_integers_and_truth_values_have_errors_as_well() -> None:
    assert relative_error(torch.tensor([3, 4]), torch.tensor([4, 4])) == 0.25
    assert relative_error(torch.tensor([True, False]), torch.tensor([True, True])) == 1.0


def test_what_float64_does_not_have_is_strange() -> None:
    value = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    truth = torch.tensor([0.0, 1e39, -math.inf, 1.0], dtype=torch.float64)
    assert oddities(value, truth) == Odd(nan=1, infinite=2, strange=2)
    assert oddities(value, None) == Odd(nan=1, infinite=2)
