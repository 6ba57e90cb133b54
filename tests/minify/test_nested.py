"""Nested graphs are put in the place of the op that calls them, or shrunk where that op is guilty."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from capturing import capture
from synthetic import problem_of, targets
from test_graph_text_captured import FUNCTIONS

from torchrepro.edit.nested_graphs import inlined, nested_calls
from torchrepro.edit.validity import why_invalid
from torchrepro.graph_text.printer import write_graph
from torchrepro.minify.order import size_of
from torchrepro.minify.passes.nested import open_nested
from torchrepro.nouns.repro import Place, Repro

EXACT = ["cond", "cond in cond", "invoke_subgraph", "autograd_function", "checkpoint"]
ONE_TURN = ["while_loop", "scan", "map"]


@functools.cache
def captured(name: str) -> tuple[Repro, ...]:
    """After capture, and below AOT where a nested graph is left there."""
    torch.manual_seed(0)
    x = torch.rand(4, 8, requires_grad=name in ("autograd_function", "checkpoint", "invoke_subgraph"))
    repros = [
        Repro(item.graph, item.inputs, Place.AFTER_CAPTURE if item.place == "dynamo" else Place.AFTER_AOT)
        for item in capture(FUNCTIONS[name], x)
    ]
    return tuple(repro for repro in repros if any(True for _ in repro.graph.children()))


@pytest.mark.parametrize("name", EXACT)
def test_a_graph_that_runs_once_computes_the_same_in_the_place_of_its_op(name: str) -> None:
    for repro in captured(name):
        opened = inlined(repro, nested_calls(repro))
        assert opened is not None
        expected, found = (each.graph(*each.inputs) for each in (repro, opened))
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        assert size_of(opened) < size_of(repro)
        assert not any(True for _ in opened.graph.children())


@pytest.mark.parametrize("name", ["while_loop", "map"])
def test_a_loop_becomes_one_turn_with_results_of_the_same_sizes(name: str) -> None:
    for repro in captured(name):
        opened = inlined(repro, nested_calls(repro))
        assert opened is not None
        assert not why_invalid(opened)
        expected, found = (each.graph(*each.inputs) for each in (repro, opened))
        assert [value.shape for value in expected] == [value.shape for value in found]
        assert size_of(opened) < size_of(repro)


@pytest.mark.parametrize("name", [*EXACT, *ONE_TURN])
def test_an_innocent_higher_order_op_goes_in_one_query(name: str) -> None:
    for repro in captured(name):
        problem = problem_of(repro, lambda found: True)
        open_nested(problem)
        assert problem.queries.asked == 1
        assert nested_calls(problem.best) == []


class _Regions(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x.sin() + 1
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            z = y @ y.t()
        return z.relu()


def test_regions_of_an_exported_graph_are_opened() -> None:
    x = torch.rand(4, 8, requires_grad=True)
    program = torch.export.export(_Regions(), (x,))
    repro = Repro(program.graph_module, (x,), Place.EXPORT)
    names = nested_calls(repro)
    opened = inlined(repro, names)
    assert len(names) == 2
    assert opened is not None
    assert torch.equal(opened.graph(x)[0], repro.graph(x)[0])
    assert not any(True for _ in opened.graph.children())


def test_the_branch_that_was_taken_is_tried_first() -> None:
    (repro, *_) = captured("cond")
    for sign, op in ((1, "sin"), (-1, "cos")):
        given = Repro(repro.graph, (sign * repro.inputs[0],), repro.place)
        problem = problem_of(given, lambda found: True)
        open_nested(problem)
        assert op in targets(problem.best)


def test_the_other_branch_is_tried_as_well() -> None:
    (repro, *_) = captured("cond")
    problem = problem_of(repro, lambda found: "cos" in [*targets(found), *_inner_ops(found)])
    open_nested(problem)
    assert targets(problem.best) == ["cos"]
    assert problem.queries.asked == 2


@pytest.mark.parametrize(("name", "queries"), [("checkpoint", 2), ("scan", 2), ("flex_attention", 1)])
def test_the_graphs_of_a_guilty_op_are_emptied(name: str, queries: int) -> None:
    for repro in captured(name):
        problem = problem_of(repro, lambda found: "higher_order" in write_graph(found.graph).text)
        open_nested(problem)
        assert problem.queries.asked == queries
        assert not why_invalid(problem.best)
        # What is left is the mask of an attention, which computes no floats.
        assert set(_inner_ops(problem.best)) <= {"new_ones", "new_ones.default"}


def _inner_ops(repro: Repro) -> list[str]:
    nested: Any = list(repro.graph.children())
    return [name for child in nested for name in targets(Repro(child, ())) if "grad" not in name]


def test_the_graphs_of_a_loop_are_left_alone_so_that_it_ends() -> None:
    for repro in captured("while_loop"):
        problem = problem_of(repro, lambda found: "higher_order" in write_graph(found.graph).text)
        open_nested(problem)
        problem.best.graph(*problem.best.inputs)
        assert len(_inner_ops(problem.best)) == 3


def test_a_graph_without_nested_ones_costs_nothing() -> None:
    problem = problem_of(Repro(torch.fx.symbolic_trace(lambda x: x + 1), (torch.ones(2),)), lambda r: True)
    open_nested(problem)
    assert problem.queries.asked == 0
