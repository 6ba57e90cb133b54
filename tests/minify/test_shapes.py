"""Sizes: to 1, to the smallest that still fails, with the failing element kept."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from input_search import first, search_inputs
from synthetic import traced

from torchrepro.edit.dimensions import dimension_table
from torchrepro.edit.held_tensors import held_tensors, with_tensors
from torchrepro.engine.store import Store
from torchrepro.minify.passes.shapes import shrink_dimensions
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict


def _coupled(repro):
    table = dimension_table(repro, Verdict(Kind.MISMATCH))
    return {frozenset((axis.held, axis.axis) for axis in each.axes) for each in table.free}


def test_sizes_that_an_op_makes_equal_are_one_dimension():
    repro = traced(lambda x, w, b: F.linear(x, w, b), torch.ones(8, 8), torch.ones(8, 8), torch.ones(8))
    assert _coupled(repro) == {frozenset({(0, 0)}), frozenset({(0, 1), (1, 1)}), frozenset({(1, 0), (2, 0)})}


def test_a_literal_changes_with_the_size_it_names():
    repro = traced(lambda x, w: F.layer_norm(x, (16,), w), torch.randn(8, 16), torch.randn(16))
    problem, _ = search_inputs(repro, lambda repro: first(repro).shape[-1] >= 3)
    node = next(node for node in problem.best.graph.graph.nodes if node.op == "call_function")
    assert node.args[1] == (3,)


@pytest.mark.parametrize(("needed", "most"), [(2, 8), (9, 9), (16, 9), (17, 8), (33, 9)])
def test_the_smallest_size_that_fails_is_found_in_few_questions(needed, most):
    repro = traced(lambda x: x.relu(), torch.randn(4, 64))
    problem, asked = search_inputs(repro, lambda repro: first(repro).shape[-1] >= needed)
    assert tuple(first(problem.best).shape) == (needed,)
    assert asked <= most


def test_only_the_input_that_needs_its_size_keeps_it():
    repro = traced(lambda x, y: x + y, torch.randn(4, 40), torch.randn(4, 40))
    problem, asked = search_inputs(repro, lambda repro: repro.inputs[1].shape[-1] >= 17)
    assert [tuple(tensor.shape) for tensor in problem.best.inputs] == [(1,), (17,)]
    assert asked <= 11


_PLACES = torch.zeros(4, 40, dtype=torch.int64)


@pytest.mark.parametrize(
    ("function", "inputs", "shapes"),
    [
        (lambda x, i: torch.gather(x, 1, i), (torch.randn(4, 40), _PLACES), [(1,), (1,)]),
        (lambda x, i, y: x.index_put((i,), y), (torch.ones(4, 9), _PLACES[0], torch.ones(9)), [(1,)] * 3),
        (lambda x: torch.fft.rfft(x, dim=1), (torch.randn(2, 40, 3),), [(1,)]),
        (lambda x: x.unbind(1)[0], (torch.randn(2, 3, 4),), [(1,)]),
        (lambda x: torch.view_as_real(x), (torch.randn(2, 3, dtype=torch.complex64),), [(1,)]),
        (lambda x: torch.var_mean(x, -1)[1], (torch.randn(4, 40),), [(1,)]),
        (lambda x, w: F.layer_norm(x, (8,), w), (torch.randn(2, 3, 8), torch.randn(8)), [(1,), (1,)]),
        (lambda i, w: F.embedding(i, w), (_PLACES[0], torch.randn(9, 3)), [(1,), (1, 1)]),
    ],
)
def test_single_elements_have_the_fewest_dimensions_that_the_op_takes(function, inputs, shapes):
    problem, _ = search_inputs(traced(function, *inputs), lambda repro: True)
    assert [tuple(tensor.shape) for tensor in problem.best.inputs] == shapes


def test_a_dimension_that_is_left_alone_is_the_first():
    repro = traced(lambda x: x.max(1)[1], torch.randn(4, 40))
    problem, _ = search_inputs(repro, lambda repro: first(repro).numel() >= 17)
    assert tuple(first(problem.best).shape) == (17,)
    assert "max(0)" in problem.best.graph.code


def test_a_second_round_asks_only_for_one_step_less():
    repro = traced(lambda x, w: F.linear(x, w), torch.randn(4, 64), torch.randn(8, 64))
    problem, _ = search_inputs(repro, lambda repro: first(repro).shape[-1] >= 17)
    problem.accept(with_tensors(problem.best, {held_tensors(problem.best)[0]: torch.zeros(1, 17)}))
    problem.queries.store = Store()
    before = problem.queries.asked
    shrink_dimensions(problem)
    assert first(problem.best).shape == (1, 17)
    assert problem.queries.asked - before <= 2


def test_the_failing_element_survives_the_slicing():
    values = torch.rand(6, 50) + 1
    values[3, 41] = -7.25

    def wrong(repro: Repro) -> bool | tuple[int, ...]:
        places = (first(repro) < 0).nonzero()
        return tuple(places[0].tolist()) if len(places) else False

    problem, asked = search_inputs(traced(lambda x: x.relu(), values), wrong)
    assert torch.equal(first(problem.best), torch.tensor([-1.0]))
    assert asked <= 5


def test_an_element_that_a_reduction_hides_is_found_by_bisection():
    values = torch.rand(128) + 1
    values[77] = -0.5
    repro = traced(lambda x: x.sum(-1), values)
    problem, asked = search_inputs(repro, lambda repro: bool((first(repro) < 0).any()))
    assert torch.equal(first(problem.best), torch.tensor([-1.0]))
    assert asked <= 18


def test_a_layout_that_matters_stays_and_another_goes():
    repro = traced(lambda x: x.relu(), torch.randn(16, 8).t())
    problem, _ = search_inputs(repro, lambda repro: not first(repro).is_contiguous())
    assert first(problem.best).shape == (2, 2)
    assert first(problem.best).stride() == (1, 2)
    problem, asked = search_inputs(repro, lambda repro: True)
    assert first(problem.best).is_contiguous()
    assert asked == 1


def test_a_graph_of_100_ops_is_shrunk_without_shape_reasoning():
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    weights = [graph.placeholder(f"w{i}") for i in range(20)]
    for weight in weights:
        value = graph.call_function(F.linear, (value, weight))
        value = graph.call_method("view", (value, 8, 4, 4))
        value = graph.call_method("transpose", (value, 1, 2))
        value = graph.call_function(torch.relu, (value,))
        value = graph.call_method("reshape", (value, 8, 16))
    graph.output(value)
    inputs = (torch.randn(8, 16), *(torch.randn(16, 16) for _ in weights))
    repro = Repro(torch.fx.GraphModule({}, graph), inputs)
    problem, asked = search_inputs(repro, lambda repro: first(repro).shape[0] > 2)
    assert first(problem.best).shape == (3, 1)
    assert all(tensor.shape == (1, 1) for tensor in problem.best.inputs[1:])
    assert asked <= 9


def test_the_original_is_left_alone():
    values = torch.randn(4, 16)
    repro = traced(lambda x: x.view(2, 2, 16).sum(0), values)
    kept, code = values.clone(), repro.graph.code
    search_inputs(repro, lambda repro: first(repro).shape[-1] >= 3)
    assert torch.equal(values, kept)
    assert repro.graph.code == code
