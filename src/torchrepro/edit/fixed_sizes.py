"""Give symbols their numbers: a graph in which some or all of the dynamic sizes are fixed."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node

from torchrepro.cut.subgraph import CALLS
from torchrepro.edit.nested_bodies import drop_fixed_inputs
from torchrepro.edit.surgery import edited, put_in_place_of, rebuilt, with_all_edited
from torchrepro.graph_text.annotations import (
    NOTE_KEY,
    Dimension,
    Note,
    SymbolNote,
    TensorNote,
    expression_of,
    note_of_node,
)
from torchrepro.graph_text.symbols import plain_number, to_sympy
from torchrepro.nouns.repro import Repro
from torchrepro.state.fake_run import run_on_fakes

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_VALUES = ("val", "example_value", "tensor_meta", "unbacked_bindings")


def with_numbers(repro: Repro, names: Collection[str]) -> Repro:
    """The repro in which the named symbols are the numbers that its inputs have."""
    known = {name: value for name, value in numbers_of(repro).items() if name in names}
    symbols = tuple(symbol for symbol in repro.symbols if symbol.name not in known)
    module = with_all_edited(repro.graph, lambda path, graph: _fix(graph, known))
    drop_fixed_inputs(module, lambda node: _number(node) is not None)
    found = rebuilt(repro, module.graph, module, drop=lambda node: _number(node) is not None)
    found = replace(found, symbols=symbols)
    return found if symbols else with_folded_numbers(found)


def numbers_of(repro: Repro) -> dict[str, int | float]:
    """The symbols that have a value before the graph runs: by the inputs, else as they were when traced."""
    found = {s.name: s.hint for s in repro.symbols if s.hint is not None and not s.unbacked}
    unbacked = {symbol.name for symbol in repro.symbols if symbol.unbacked}
    placeholders = [node for node in repro.graph.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, repro.inputs, strict=False):
        for text, number in _sizes(_note(node), value):
            if text.isidentifier() and text not in unbacked and not text.startswith("u"):
                found[text] = number
    return found


def with_folded_numbers(repro: Repro) -> Repro:
    """Sizes that the graph computes become the numbers that they are, as far as that is known beforehand."""
    calls = {node.name for node in repro.graph.graph.nodes if node.op in CALLS}
    numbers = {
        name: value
        for name, value in run_on_fakes(repro).by_name.items()
        if name in calls and isinstance(value, int | float) and not isinstance(value, _SYMBOLIC)
    }

    def edit(graph: Graph) -> None:
        for node in list(graph.nodes):
            if node.name in numbers:
                put_in_place_of(node, numbers[node.name])

    return edited(repro, edit) if numbers else repro


def _fix(graph: Graph, known: Mapping[str, int | float]) -> None:
    """Numbers for the known symbols, wherever they stand.

    Inputs that are numbers now stay: they go together with what is given for them.
    """
    for node in list(graph.nodes):
        note = _with_known(_note(node), known)
        node.meta = {key: value for key, value in node.meta.items() if key not in _VALUES}
        node.meta[NOTE_KEY] = note
        node.args, node.kwargs = (
            torch.fx.node.map_aggregate(held, lambda value: _plain(value, known))
            for held in (node.args, node.kwargs)
        )
        number = _number(node)
        if number is not None and node.op in (*CALLS, "placeholder"):
            put_in_place_of(node, number)


def _note(node: Node) -> Note | None:
    held: Note | None = node.meta.get(NOTE_KEY)
    return note_of_node(node) if held is None else held


def _number(node: Node) -> int | float | None:
    """The number that a node always is, by its note."""
    note = node.meta.get(NOTE_KEY)
    return _as_number(note.expression) if isinstance(note, SymbolNote) and note.kind != "symbool" else None


def _as_number(text: Dimension) -> int | float | None:
    try:
        value = ast.literal_eval(str(text))
    except ValueError:
        return None
    return value if isinstance(value, int | float) else None


def _with_known(note: Note | None, known: Mapping[str, int | float]) -> Note | None:
    if isinstance(note, tuple):
        return tuple(_with_known(item, known) for item in note)
    if isinstance(note, SymbolNote):
        return replace(note, expression=str(_evaluated(note.expression, known)))
    if isinstance(note, TensorNote):
        shape = tuple(_evaluated(size, known) for size in note.shape)
        stride = None if note.stride is None else tuple(_evaluated(step, known) for step in note.stride)
        return replace(note, shape=shape, stride=None if stride == _contiguous(shape) else stride)
    return note


def _contiguous(shape: Sequence[Dimension]) -> tuple[int, ...] | None:
    """The strides that go without saying; None where a size is not known."""
    steps: list[int] = []
    step = 1
    for size in reversed(shape):
        if isinstance(size, str):
            return None
        steps.append(step)
        step *= size or 1
    return tuple(reversed(steps))


def _evaluated(text: Dimension, known: Mapping[str, int | float]) -> Dimension:
    """An expression with the known symbols put in: a number where none is left."""
    if isinstance(text, int):
        return text

    def symbol(name: str) -> Any:
        return sympy.sympify(known[name]) if name in known else sympy.Symbol(name, integer=True)

    found = to_sympy(ast.parse(text, mode="eval").body, symbol)
    if not getattr(found, "is_number", False):
        return str(found)
    number = plain_number(found)
    return number if isinstance(number, int) else str(number)


def _plain(value: Any, known: Mapping[str, int | float]) -> Any:
    """An argument: a symbolic number becomes a plain one if all of its symbols are known."""
    if not isinstance(value, _SYMBOLIC):
        return value
    text = expression_of(value)
    number = text if not isinstance(text, str) else _as_number(_evaluated(text, known))
    return value if number is None else number


def _sizes(note: Note | None, value: Any) -> list[tuple[str, Any]]:
    """Expressions in the note of an input, each with the number that the input has there."""
    if isinstance(note, SymbolNote) and isinstance(value, int | float) and not isinstance(value, bool):
        return [(note.expression, value)]
    if isinstance(note, TensorNote) and isinstance(value, torch.Tensor):
        pairs = zip(note.shape, value.shape, strict=False)
        return [(size, int(actual)) for size, actual in pairs if isinstance(size, str)]
    return []
