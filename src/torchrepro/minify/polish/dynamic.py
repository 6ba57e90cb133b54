"""Dynamic sizes of a graph's inputs, by the notes that its placeholders carry."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import GraphModule, Node

from torchrepro.bundle.graph_text.annotations import SymbolNote, TensorNote, note_of_node


def sizes_of_inputs(module: GraphModule) -> dict[Node, tuple[Node, int]]:
    """Inputs that are sizes of other inputs: (the tensor, its dimension) that each is found at."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder" and node.users]
    places: dict[str, tuple[Node, int]] = {}
    for node in placeholders:
        note = note_of_node(node)
        if isinstance(note, TensorNote):
            for dim, size in enumerate(note.shape):
                if isinstance(size, str):
                    places.setdefault(size, (node, dim))
    found = {}
    for node in placeholders:
        note = note_of_node(node)
        if isinstance(note, SymbolNote) and note.expression in places:
            found[node] = places[note.expression]
    return found


def dynamic_dimensions(module: GraphModule) -> Iterator[tuple[Node, int, bool]]:
    """(input, dimension, whether it is a symbol) of every dimension of every tensor that is an input."""
    for node in module.graph.nodes:
        note = note_of_node(node) if node.op == "placeholder" else None
        if isinstance(note, TensorNote):
            for dim, size in enumerate(note.shape):
                yield node, dim, isinstance(size, str)
