"""A piece of a graph computes what it computed inside the whole, and depends on nothing else."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule

from torchrepro.cut.record_values import observed_values
from torchrepro.cut.subgraph import piece, side_by_side
from torchrepro.cut.units import units_of
from torchrepro.nouns.repro import Repro

OPS = (torch.sin, torch.relu, torch.neg, torch.add, torch.mul, torch.split)


@st.composite
def repros(draw: st.DrawFn) -> Repro:
    """Random graphs of ops with one or two operands, and one with several results."""
    graph = Graph()
    values = [graph.placeholder(f"x{number}") for number in range(draw(st.integers(1, 3)))]
    inputs = len(values)
    for _ in range(draw(st.integers(2, 12))):
        op = draw(st.sampled_from(OPS))
        pick = [values[draw(st.integers(0, len(values) - 1))] for _ in range(2)]
        if op is torch.split:
            parts = graph.call_function(torch.split, (pick[0], 2, 1))
            halves = [graph.call_function(operator.getitem, (parts, place)) for place in range(2)]
            values.append(graph.call_function(torch.cat, (halves, 1)))
        else:
            args = tuple(pick if op in (torch.add, torch.mul) else pick[:1])
            values.append(graph.call_function(op, args))
    graph.output((values[-1], values[draw(st.integers(0, len(values) - 1))]))
    return Repro(GraphModule({}, graph), tuple(torch.randn(2, 4) for _ in range(inputs)))


def results(repro: Repro) -> list[torch.Tensor]:
    return list(repro.graph(*repro.inputs))


@settings(deadline=None, max_examples=60)
@given(repros(), st.data())
def test_a_piece_computes_the_recorded_values(repro: Repro, data: st.DataObject) -> None:
    recording = observed_values(repro, limit=1 << 20)
    units = units_of(repro.graph.graph, recording.several)
    kept = [unit for unit in units if data.draw(st.booleans())]
    cut = piece(repro, recording, [name for unit in kept for name in unit.nodes])
    assert (cut is None) == (not kept)
    if cut is None:
        return
    cut.graph.graph.lint()
    names = [node.name for node in cut.graph.graph.output_node().all_input_nodes]
    for name, value in zip(names, results(cut), strict=True):
        assert torch.equal(value, recording.result(name))
    calls = [node for node in cut.graph.graph.nodes if node.op == "call_function"]
    assert len(calls) == sum(len(unit.nodes) for unit in kept)


@settings(deadline=None, max_examples=40)
@given(repros())
def test_all_of_it_returns_all_that_the_whole_returns(repro: Repro) -> None:
    recording = observed_values(repro, limit=1 << 20)
    whole = piece(repro, recording, [node.name for node in repro.graph.graph.nodes])
    assert whole is not None
    found = results(whole)
    computed = [
        value
        for node, value in zip(repro.graph.graph.output_node().args[0], results(repro), strict=True)  # type: ignore[arg-type]
        if node.op != "placeholder"  # type: ignore[union-attr]
    ]
    assert all(any(torch.equal(value, other) for other in found) for value in computed)


@settings(deadline=None, max_examples=40)
@given(repros())
def test_side_by_side_no_op_feeds_another(repro: Repro) -> None:
    recording = observed_values(repro, limit=1 << 20)
    names = [unit.name for unit in units_of(repro.graph.graph, recording.several)]
    beside = side_by_side(repro, recording, names)
    assert beside is not None
    assert len(beside.inputs) == len(beside.repro.inputs)
    nodes = {node.name: node for node in beside.repro.graph.graph.nodes}
    for name in names:
        operands = nodes[name].all_input_nodes
        assert all(operand.op == "placeholder" for operand in operands)
    values = results(beside.repro)
    assert len(values) == len(beside.outputs)
    for owner, value in zip((names[number] for number in beside.outputs), values, strict=True):
        if owner not in recording.several:
            assert torch.equal(value, recording.result(owner))


def traced(function: Any, *inputs: Any) -> Repro:
    return Repro(torch.fx.symbolic_trace(function), inputs)


def cut_of(repro: Repro, names: Sequence[str]) -> Repro:
    cut = piece(repro, observed_values(repro, limit=1 << 20), names)
    assert cut is not None
    return cut


def test_sizes_become_numbers() -> None:
    repro = traced(lambda x: x.sin().view(x.size(0) * 2, -1).cos(), torch.randn(2, 4))
    cut = cut_of(repro, ["view", "cos"])
    assert "size" not in cut.graph.code
    assert len(cut.inputs) == 1
    assert torch.equal(results(cut)[0], repro.graph(*repro.inputs))


def test_what_an_op_writes_to_is_an_input_as_it_was() -> None:
    def written_to(x: torch.Tensor) -> torch.Tensor:
        a = torch.sin(x)
        a.add_(1)
        return torch.tan(a)

    repro = traced(written_to, torch.randn(3))
    cut = cut_of(repro, ["tan"])
    assert torch.equal(cut.inputs[0], repro.inputs[0].sin() + 1)


def test_an_op_of_one_input_read_twice_has_one_input() -> None:
    cut = cut_of(traced(lambda x: (x.sin() * x.sin().neg()).cos(), torch.randn(3)), ["mul"])
    assert len(cut.inputs) == 2
    cut = cut_of(traced(lambda x: (lambda y: y * y)(x.sin()), torch.randn(3)), ["mul"])
    assert len(cut.inputs) == 1


def test_constants_of_the_graph_come_along() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.full((3,), 2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x) * self.scale

    x = torch.randn(3)
    repro = traced(Model(), x)
    cut = cut_of(repro, ["mul"])
    assert torch.equal(results(cut)[0], x.sin() * 2)
    assert len(cut.inputs) == 1
