"""Dynamic sizes become the numbers that they were, all of them or those that can."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch
from capturing import capture
from synthetic import problem_of, targets

from torchrepro.cut.subgraph import piece
from torchrepro.edit.symbolic_sizes import with_numbers
from torchrepro.edit.validity import why_invalid
from torchrepro.graph_text.metadata import symbols_of
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import write_graph
from torchrepro.minify.passes.settings import make_static
from torchrepro.nouns.repro import Compiler, Place, Repro


def _model(x: torch.Tensor, y: torch.Tensor) -> Any:
    batch, length, width = x.shape
    z = x.view(batch, length, 2, -1).transpose(1, 2).reshape(batch * 2, length, -1) + y.sum() * width
    return torch.zeros(batch * 2, length) + z.mean(-1), z.expand(batch * 2, length, width // 2)


def _branch(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.cond(y.sum() > 0, lambda x: x.view(-1).sin(), lambda x: x.view(-1) * x.shape[0], (x,))


@functools.cache
def _captured(function: Any) -> dict[str, Repro]:
    places = {"dynamo": Place.AFTER_CAPTURE, "inference": Place.AFTER_AOT}
    found = {}
    for item in capture(function, torch.randn(3, 5, 8), torch.randn(7), dynamic=True):
        graph = item.graph
        symbols = symbols_of(graph)
        written = write_graph(graph)
        graph = read_graph(written.text, written.constants)  # as a bundle gives it
        found[item.place] = Repro(graph, item.inputs, places[item.place], symbols=symbols)
    return found


def same_results(one: Repro, other: Repro) -> bool:
    results = [repro.graph(*repro.inputs) for repro in (one, other)]
    return all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("place", ["dynamo", "inference"])
@pytest.mark.parametrize("function", [_model, _branch])
def test_without_symbols_it_computes_the_same(function: Any, place: str) -> None:
    repro = _captured(function)[place]
    problem = problem_of(repro, lambda found: True)
    make_static(problem)
    assert problem.queries.asked == 1
    assert not problem.best.symbols
    assert all(isinstance(value, torch.Tensor) for value in problem.best.inputs)
    assert same_results(repro, problem.best)
    assert "s" not in {text[0] for text in _sizes(problem.best)}


def _sizes(repro: Repro) -> list[str]:
    """The sizes in the notes of a graph, as text."""
    lines = write_graph(repro.graph).text.splitlines()
    notes = [line.partition(": ")[2].partition(" =")[0] for line in lines if ": f32[" in line]
    return [size.strip() for note in notes for size in note[4:].partition("]")[0].split(",") if size]


@pytest.mark.parametrize("place", ["dynamo", "inference"])
def test_a_symbol_that_is_needed_stays(place: str) -> None:
    repro = _captured(_model)[place]
    needed = repro.symbols[1].name
    problem = problem_of(repro, lambda found: needed in [symbol.name for symbol in found.symbols])
    make_static(problem)
    assert [symbol.name for symbol in problem.best.symbols] == [needed]
    assert problem.queries.asked <= 6
    assert same_results(repro, problem.best)
    assert not why_invalid(problem.best)


def test_nobody_asks_for_symbols_that_are_not_there() -> None:
    repro = replace(_captured(_model)["dynamo"], compiler=Compiler(dynamic=True))
    problem = problem_of(repro, lambda found: True)
    make_static(problem)
    assert problem.best.compiler.dynamic is None
    assert problem.queries.asked == 1


def test_sizes_are_folded_in_a_piece_that_has_lost_its_notes() -> None:
    repro = _captured(_model)["inference"]
    problem = problem_of(repro, lambda found: True)
    recording = problem.recording()
    assert recording is not None
    cut = piece(repro, recording, [node.name for node in repro.graph.graph.nodes])
    assert cut is not None
    static = with_numbers(cut, [symbol.name for symbol in cut.symbols])
    assert not static.symbols
    assert "mul" not in targets(static)[:2]
    assert all(isinstance(value, torch.Tensor) for value in static.inputs)


@pytest.mark.parametrize("place", ["dynamo", "inference"])
def test_a_nested_graph_is_given_no_plain_numbers(place: str) -> None:
    repro = _captured(_branch)[place]
    static = with_numbers(repro, [symbol.name for symbol in repro.symbols])
    (call,) = [node for node in static.graph.graph.nodes if str(node.target) == "cond"]
    assert all(isinstance(operand, torch.fx.Node) for operand in call.args[3])


def test_static_sizes_cost_nothing() -> None:
    problem = problem_of(replace(_captured(_model)["dynamo"], symbols=()), lambda found: True)
    make_static(problem)
    assert problem.queries.asked == 0
