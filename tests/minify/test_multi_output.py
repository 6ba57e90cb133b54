"""Graphs return what shows the failure, and ops compute the result that is used."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import SyntheticOracle, problem_of, targets, traced
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from torchrepro.edit.outputs import outputs_of, returning, taken_apart, with_single_results
from torchrepro.engine.queries import Queries
from torchrepro.minify.passes.multi_output import drop_outputs, single_results
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Comparison, Difference, Kind, LeafComparison, Verdict

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def several(x: torch.Tensor) -> Any:
    parts = x.chunk(3, dim=1)
    return {
        "max": torch.max(x, 1)[0],
        "min": [x.min(0, True)[1], x.min(dim=-1)[0]],
        "parts": (torch.split(x, 3, 1)[1], parts[0], parts[2], torch.split(x, [2, 6], dim=1)[1]),
        "row": x.unbind(0)[2],
    }


def both_levels() -> list[Repro]:
    flat = make_fx(lambda x: tree_leaves(several(x)))(X)
    return [traced(several, X), Repro(flat, (X,), Place.AFTER_AOT)]


@pytest.mark.parametrize("repro", both_levels(), ids=["torch", "aten"])
def test_one_op_for_two_computes_the_same(repro: Repro) -> None:
    single = with_single_results(repro, taken_apart(repro))
    torch.testing.assert_close(single.graph(X), repro.graph(X), rtol=0, atol=0)
    assert "getitem" not in targets(single)
    assert len(targets(single)) == len(outputs_of(repro))


def test_an_op_whose_other_results_do_not_matter_goes_in_one_query() -> None:
    problem = problem_of(traced(lambda x: torch.max(x, 1)[1], X), lambda repro: True)
    single_results(problem)
    assert targets(problem.best) == ["argmax"]
    assert problem.queries.asked == 1


def test_an_op_that_is_guilty_keeps_its_results() -> None:
    problem = problem_of(traced(lambda x: torch.max(x, 1)[1], X), lambda repro: "max" in targets(repro))
    single_results(problem)
    assert targets(problem.best) == ["max", "getitem"]
    assert problem.queries.asked == 1


def wrong_at(path: str) -> Verdict:
    return Verdict(Kind.MISMATCH, comparison=Comparison((LeafComparison(path, Difference.VALUE),)))


@pytest.mark.parametrize(
    ("path", "left"), [("out['max']", "max"), ("out['min'][0]", "min"), ("out['row']", "unbind")]
)
def test_the_output_that_differs_is_found_in_one_query(path: str, left: str) -> None:
    problem = Problem(
        Queries(traced(several, X), wrong_at(path), SyntheticOracle(lambda repro: left in targets(repro)))
    )
    drop_outputs(problem)
    assert targets(problem.best) == [left, "getitem"]
    assert problem.queries.asked == 1


def test_a_nested_output_becomes_a_plain_tuple() -> None:
    problem = problem_of(traced(lambda x: {"a": [x.relu()]}, X), lambda repro: True)
    drop_outputs(problem)
    assert isinstance(problem.best.graph.graph.output_node().args[0], tuple)
    assert problem.queries.asked == 1


def test_an_input_that_only_a_dropped_output_read_goes_too() -> None:
    problem = problem_of(traced(lambda x, y: (x.sin(), y.cos()), X, X), lambda repro: "sin" in targets(repro))
    drop_outputs(problem)
    assert targets(problem.best) == ["sin"]
    assert len(problem.best.inputs) == 1


def test_what_writes_to_an_input_stays() -> None:
    repro = traced(lambda x, y: (x.add_(1), y.cos()), X, X)
    problem = problem_of(repro, lambda found: "cos" in targets(found))
    drop_outputs(problem)
    assert targets(problem.best) == ["add_", "cos"]


def test_one_output_costs_nothing() -> None:
    problem = problem_of(traced(lambda x: x.relu(), X), lambda repro: True)
    drop_outputs(problem)
    single_results(problem)
    assert problem.queries.asked == 0


@settings(deadline=None, max_examples=25)
@given(st.sets(st.integers(0, 7), min_size=1, max_size=3))
def test_no_output_that_is_left_can_go(needed: set[int]) -> None:
    def function(x: torch.Tensor) -> Any:
        return tuple(x + number for number in range(8))

    def fails(repro: Repro) -> bool:
        held = {node.args[1] for node in repro.graph.graph.nodes if node.op == "call_function"}
        return needed <= held

    problem = problem_of(traced(function, X), fails)
    drop_outputs(problem)
    outputs = outputs_of(problem.best)
    assert len(outputs) == len(needed)
    for output in outputs:
        fewer = returning(problem.best, [other for other in outputs if other is not output])
        assert fewer is None or not fails(fewer)
    assert problem.queries.asked <= 4 + 8 * len(needed)
