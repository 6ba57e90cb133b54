"""Dynamic shapes: the repro with fixed sizes where it has dynamic ones, and the other way round."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch.fx import GraphModule

from torchrepro.edit.fixed_sizes import with_numbers
from torchrepro.explain.settings import Switch
from torchrepro.explain.variations import Variation
from torchrepro.graph_text.annotations import NOTE_KEY, SymbolNote, TensorNote, note_of_value
from torchrepro.nouns.explanation import Area
from torchrepro.nouns.repro import Place, Repro, Symbol

_SUBJECT = "dynamic shapes"


def switches(repro: Repro) -> Iterator[Switch]:
    """One, or none where the repro has no sizes that could be dynamic."""
    alike = "dynamic and static shapes alike"
    if repro.symbols:
        fixed = with_numbers(repro, {symbol.name for symbol in repro.symbols})
        variation = Variation(Area.COMPILER, _SUBJECT, "static", fixed, "static shapes")
        yield Switch(variation, "dynamic", alike, "only with dynamic shapes")
    else:
        made = _with_symbols(repro)
        if made is not None:
            variation = Variation(Area.COMPILER, _SUBJECT, "dynamic", made, "dynamic shapes")
            yield Switch(variation, "static", alike, "only with static shapes")


def _with_symbols(repro: Repro) -> Repro | None:
    """Every size above 1 of every input as a symbol, equal sizes as one: what `dynamic=True` makes of them.

    As in a captured graph, the sizes are inputs of their own before all others. Without those, inductor does
    not fold `x * 0`, which hid the failure of softshrink on NaN. None where nothing would change, or where
    strides would have to become expressions as well.
    """
    if repro.place not in (Place.AFTER_CAPTURE, Place.AFTER_AOT) or repro.earlier:
        return None
    tensors = [value for value in repro.inputs if isinstance(value, torch.Tensor)]
    sizes = sorted({size for tensor in tensors for size in tensor.shape if size > 1})
    if not sizes or not all(type(t) is torch.Tensor and t.is_contiguous() for t in tensors):
        return None
    symbols = {size: Symbol(f"s{number}", hint=size, lower=2) for number, size in enumerate(sizes)}
    graph = copy.deepcopy(repro.graph.graph)
    placeholders = graph.find_nodes(op="placeholder")
    with graph.inserting_before(placeholders[0]):
        for symbol in symbols.values():
            number = graph.placeholder(symbol.name)
            number.meta = {NOTE_KEY: SymbolNote("sym", symbol.name)}
    for node, value in zip(placeholders, repro.inputs, strict=False):
        note = note_of_value(value)
        if isinstance(note, TensorNote):
            shape = tuple(symbols[size].name if size in symbols else size for size in value.shape)
            node.meta = {NOTE_KEY: replace(note, shape=shape, stride=None)}
    module = GraphModule(repro.graph, graph, class_name="Graph")
    return replace(repro, graph=module, inputs=(*symbols, *repro.inputs), symbols=tuple(symbols.values()))
