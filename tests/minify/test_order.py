"""The order on repros: total, blind for names, and smaller for what a maintainer would rather read."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from random_graphs import random_repros
from test_canonical_key import renamed, traced, variants
from torch.fx import symbolic_trace

from torchrepro.edit.held_tensors import count_elements
from torchrepro.minify.order import count_settings, size_of
from torchrepro.nouns.repro import Ambient, Autocast, Compiler, Repro

SOME = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


@SOME
@given(repro=random_repros(12))
def test_one_more_op_or_element_is_larger_whatever_else_changes(repro: Repro) -> None:
    size = size_of(repro)
    graph = copy.deepcopy(repro.graph)
    output = graph.graph.output_node()
    with graph.graph.inserting_before(output):
        first = output.all_input_nodes[0]
        added = graph.graph.call_function(torch.relu, (first,))
    output.replace_input_with(first, added)
    graph.recompile()
    # One op more outweighs inputs that are plainer and fewer elements.
    plainer = tuple(torch.zeros(1) if isinstance(value, torch.Tensor) else value for value in repro.inputs)
    assert size < size_of(replace(repro, graph=graph))
    assert size < size_of(replace(repro, graph=graph, inputs=plainer))
    assert size == size_of(replace(repro))


@SOME
@given(repro=random_repros(20))
def test_names_do_not_count(repro: Repro) -> None:
    assert size_of(repro) == size_of(renamed(repro))


def test_every_kind_of_repro_has_a_size() -> None:
    for repro in variants().values():
        assert size_of(repro) == size_of(replace(repro))


def smaller(one: Repro, other: Repro) -> bool:
    return size_of(one) < size_of(other)


def test_the_order_is_ops_inputs_elements_settings_text_values() -> None:
    def add(x: Any, y: Any) -> Any:
        return x + y

    small, large = torch.zeros(2), torch.zeros(100)
    one_op = traced(add, large, large.clone())
    assert smaller(one_op, traced(lambda x: x.sin().cos(), small))
    one_input = traced(lambda x: x.sin(), large)
    assert smaller(one_input, traced(add, small, small.clone()))
    set_up = replace(traced(lambda x: x.sin(), small), ambient=Ambient(grad_enabled=False))
    assert smaller(set_up, one_input)
    long_text = traced(lambda x: x.clamp(min=-1.25, max=17.5), small)
    assert smaller(long_text, replace(traced(lambda x: x.sin(), small), ambient=set_up.ambient))
    assert smaller(traced(lambda x: x.clamp(min=0), torch.tensor([0.3, 0.7])), long_text)
    assert smaller(traced(lambda x: x.sin(), small), traced(lambda x: x.sin(), torch.tensor([0.3, 0.7])))


def test_settings_are_counted_one_by_one() -> None:
    repro = traced(lambda x: x + 1, torch.zeros(2))
    assert count_settings(repro) == 0
    ambient = Ambient(
        grad_enabled=False,
        autocast=(Autocast("cpu", "bfloat16"),),
        configs={"inductor": {"a": 1, "b": 2}},
        environ={"TORCH_LOGS": "x"},
    )
    assert count_settings(replace(repro, ambient=ambient)) == 5
    options = Compiler(mode="max-autotune", dynamic=True, options={"a": 1})
    assert count_settings(replace(repro, compiler=options)) == 3
    assert count_settings(replace(repro, earlier=((torch.zeros(2),),), strict=True)) == 2


def test_elements_of_constants_and_earlier_calls_count() -> None:
    module = torch.nn.Linear(2, 3)
    repro = Repro(symbolic_trace(module), (torch.zeros(4, 2),), earlier=((torch.zeros(5, 2),),))
    assert count_elements(repro) == 2 * 3 + 3 + 8 + 10


def test_asking_again_costs_milliseconds() -> None:
    def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for number in range(300):
            x = torch.relu(x.view(4, -1)) + number
        return x + y.sum()

    repro = traced(chain, torch.ones(4, 64), torch.randn(1 << 20))
    size_of(repro)
    started = time.process_time()
    size_of(repro)
    assert time.process_time() - started < 0.2  # 15 ms where nothing else runs
