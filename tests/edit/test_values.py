"""Values and dtypes: plain where they do not matter, kept where they do."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from input_search import first, search_inputs
from synthetic import traced

from torchrepro.edit.held_tensors import held_tensors, with_tensors
from torchrepro.minify.order import size_of
from torchrepro.nouns.repro import Repro


def test_a_negative_value_becomes_minus_one():
    repro = traced(lambda x: x.relu(), -torch.rand(4, 8) - 0.1)
    problem, asked = search_inputs(repro, lambda repro: bool((first(repro) < 0).any()))
    assert torch.equal(first(problem.best), torch.tensor([-1.0]))
    assert asked <= 5


def test_a_nan_stays():
    repro = traced(lambda x: x.relu(), torch.tensor([math.nan, 0.1, 2.0, -3.0] * 8))
    problem, asked = search_inputs(repro, lambda repro: bool(first(repro).isnan().any()))
    assert first(problem.best).shape == (1,)
    assert first(problem.best).isnan().all()
    assert asked <= 4


def test_an_overflow_keeps_a_large_value_in_few_digits():
    repro = traced(lambda x: x * x, torch.tensor([2.9131e38, 1.0, 0.5]))
    problem, asked = search_inputs(repro, lambda repro: bool((first(repro) > 2.85e38).any()))
    assert torch.equal(first(problem.best), torch.tensor([3e38]))
    assert asked <= 6


def test_values_that_must_differ_count_up():
    repro = traced(lambda x: x - x.mean(-1, keepdim=True), torch.randn(4, 16))
    problem, asked = search_inputs(repro, lambda repro: bool(first(repro).std(-1, correction=0).max() > 0.01))
    assert first(problem.best).flatten().tolist() == [0.0, 1.0]
    assert asked <= 12


def test_only_the_input_that_needs_its_values_keeps_them():
    repro = traced(
        lambda x, y, z: x * y + z, *(torch.randn(3) for _ in range(2)), torch.tensor([5.0, 7.0, -9.0])
    )
    problem, _ = search_inputs(repro, lambda repro: bool((repro.inputs[2] < -2.5).any()))
    x, y, z = problem.best.inputs
    assert x.tolist() == y.tolist() == [1.0]
    assert z.tolist() == [-9.0]


def test_few_irregular_values_are_left_in_a_tensor_that_needs_some():
    values = torch.rand(8)
    values[5], values[6] = 0.6372, 7.5123

    def condition(repro: Repro) -> bool:
        tensor = first(repro)
        return tensor.numel() == 8 and 0.2 < float(tensor[5]) < 0.9 and float(tensor[6]) > 6

    problem, _ = search_inputs(traced(lambda x: x.relu(), values), condition)
    tensor = first(problem.best)
    assert tensor.tolist().count(1.0) == 6
    assert torch.equal(tensor[5:7], torch.tensor([0.6, 8.0]))


def test_an_unusual_dtype_goes_unless_it_matters():
    repro = traced(lambda x: x.to(torch.float64) + 1, torch.randn(4, dtype=torch.bfloat16))
    problem, _ = search_inputs(repro, lambda repro: True)
    assert first(problem.best).dtype is torch.float32
    assert "float64" not in problem.best.graph.code
    problem, _ = search_inputs(repro, lambda repro: first(repro).dtype is torch.bfloat16)
    assert first(problem.best).dtype is torch.bfloat16
    assert "float64" not in problem.best.graph.code


def test_parameters_stay_parameters_and_keep_their_gradients_where_those_fail():
    weight = torch.nn.Parameter(torch.randn(4, 4))
    repro = traced(lambda w: w.relu(), weight)
    problem, _ = search_inputs(repro, lambda repro: first(repro).requires_grad)
    assert isinstance(problem.best.inputs[0], torch.nn.Parameter)
    assert problem.best.inputs[0].numel() == 1


def test_a_tensor_that_is_given_twice_stays_one():
    x = torch.randn(4, 4)
    repro = traced(lambda a, b: a + b, x, x)
    problem, _ = search_inputs(repro, lambda repro: repro.inputs[0] is repro.inputs[1])
    assert problem.best.inputs[0] is problem.best.inputs[1]
    assert problem.best.inputs[0].numel() == 1


def test_inputs_that_share_memory_stay_so_where_that_matters():
    memory = torch.randn(6)
    repro = traced(lambda a, b: a + b, memory[:4], memory[2:])

    def shared(repro: Repro) -> bool:
        a, b = repro.inputs
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()

    problem, _ = search_inputs(repro, shared)
    assert shared(problem.best)
    problem, asked = search_inputs(repro, lambda repro: True)
    assert not shared(problem.best)
    assert asked == 1


def test_inputs_of_earlier_calls_change_with_those_of_the_call():
    repro = replace(
        traced(lambda x, y: x + y, torch.randn(8, 4), torch.randn(4)),
        earlier=((torch.randn(2, 4), torch.randn(4)),),
    )
    problem, _ = search_inputs(repro, lambda repro: len(repro.earlier) == 1 and first(repro).shape[0] > 2)
    (x, y), ((former, other),) = problem.best.inputs, problem.best.earlier
    assert (x.shape, y.shape) == ((3, 1), (1,))
    assert (former.shape, other.shape) == ((1, 1), (1,))


def test_constants_in_the_graph_shrink_as_well():
    class Shifted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.randn(16))

        def forward(self, x):
            return x + self.shift

    module = Shifted()
    repro = Repro(torch.fx.symbolic_trace(module), (torch.randn(4, 16),))
    problem, _ = search_inputs(repro, lambda repro: True)
    assert problem.best.graph.shift.numel() == 1
    assert module.shift.numel() == repro.graph.shift.numel() == 16


def test_plainer_values_are_smaller_in_the_order():
    repro = traced(lambda x: x.relu(), torch.zeros(4))

    def with_values(tensor):
        return size_of(with_tensors(repro, {held_tensors(repro)[0]: tensor}))

    generator = torch.Generator().manual_seed(0)
    sizes = [
        with_values(torch.ones(4)),
        with_values(torch.full((4,), -1.0)),
        with_values(torch.full((4,), 0.37)),
        with_values(torch.arange(4.0)),
        with_values(torch.randn(4, generator=generator)),
        with_values(torch.tensor([3.0, 1.0, 1.0, 1.0])),
        with_values(torch.rand(4)),
    ]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == len(sizes)


def test_a_failing_element_beyond_the_inputs_is_no_position_in_them():
    """A probe of sizes compares results of other sizes than the repro has."""
    repro = traced(lambda x: x.relu(), -torch.rand(6, 8) - 0.1)
    problem, _ = search_inputs(repro, lambda repro: (16, 4) if bool((first(repro) < 0).any()) else False)
    assert torch.equal(first(problem.best), torch.tensor([-1.0]))
