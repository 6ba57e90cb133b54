"""Operands that only stand in a list go; equal ops become one."""

from __future__ import annotations

import operator
from typing import Any

import torch
from random_graphs import leads_to
from synthetic import problem_of, targets, traced

from torchrepro.minify.passes.duplicates import merge_duplicates
from torchrepro.minify.passes.lists import shorten_lists
from torchrepro.minify.registry import chosen_passes, search
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind


def joined(x: Any, y: Any) -> Any:
    return torch.cos(torch.cat([torch.sin(x), torch.exp(y), torch.tan(x)]))


def test_operands_of_a_list_that_are_not_needed_go_with_what_computes_them() -> None:
    problem = problem_of(traced(joined, torch.ones(3), torch.ones(3)), leads_to("sin", "cat").holds)
    shorten_lists(problem)
    assert targets(problem.best) == ["sin", "cat", "cos"]
    assert len(problem.best.inputs) == 1


def test_an_index_that_is_not_needed_goes() -> None:
    def fails(repro: Repro) -> bool:
        return {"sin", "setitem", "arange"} <= set(targets(repro))

    problem = problem_of(_written_graph(), fails)
    shorten_lists(problem)
    assert targets(problem.best).count("arange") == 1


def _written_graph() -> Repro:
    graph = torch.fx.Graph()
    made = graph.call_function(torch.sin, (graph.placeholder("x"),))
    places = tuple(graph.call_function(torch.arange, (3,)) for _ in range(2))
    graph.call_function(operator.setitem, (made, places, 0))
    graph.output((graph.call_function(torch.cos, (made,)),))
    return Repro(torch.fx.GraphModule({}, graph), (torch.ones(3, 3),))


def test_equal_ops_become_one() -> None:
    def twice(x: Any) -> Any:
        return torch.atan2(torch.cos(torch.sin(x)), torch.cos(torch.sin(x)))

    problem = problem_of(traced(twice, torch.ones(3)), leads_to("sin", "atan2").holds)
    merge_duplicates(problem)
    assert targets(problem.best) == ["sin", "cos", "atan2"]
    assert problem.queries.asked == 1


def test_ops_that_have_to_be_computed_twice_stay() -> None:
    def twice(x: Any) -> Any:
        return torch.atan2(torch.sin(x), torch.sin(x)) + torch.exp(x) * torch.exp(x)

    problem = problem_of(traced(twice, torch.ones(3)), lambda repro: targets(repro).count("sin") == 2)
    merge_duplicates(problem)
    assert sorted(targets(problem.best)) == ["add", "atan2", "exp", "mul", "sin", "sin"]


def _name(node: torch.fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _behind(node: torch.fx.Node) -> set[str]:
    found = {_name(each) for each in node.all_input_nodes}
    return found.union(*(_behind(each) for each in node.all_input_nodes))


def _masked() -> Repro:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    mask = graph.call_function(torch.full, ((8, 8), -10000.0))
    places = tuple(
        graph.call_method("unsqueeze", (graph.call_function(torch.arange, (8,)), dim)) for dim in range(2)
    )
    graph.call_function(operator.setitem, (mask, places, 0))
    graph.output((graph.call_function(torch.softmax, (graph.call_function(torch.add, (x, mask)), -1)),))
    return Repro(torch.fx.GraphModule({}, graph), (torch.ones(8, 8),))


def test_a_failure_of_ops_that_must_stand_together_ends_small_and_soon() -> None:
    """As in a compiler's fusion: what is made inside, written to at places made inside, then read."""

    def fails(repro: Repro) -> bool:
        writes = [node for node in repro.graph.graph.nodes if _name(node) == "setitem"]
        reads = [_behind(node) for node in repro.graph.graph.nodes if _name(node) == "softmax"]
        return any({"full", "arange"} <= _behind(write) for write in writes) and any(
            "full" in each for each in reads
        )

    problem = problem_of(_masked(), fails, Kind.COMPILE_ERROR)
    search(problem, chosen_passes())
    assert targets(problem.best) == ["full", "arange", "setitem", "softmax"]
    assert not problem.best.inputs
    assert problem.queries.asked <= 40
