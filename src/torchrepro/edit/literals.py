"""Numbers that stand in a graph's arguments: where they are, and a copy of the graph with others in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import Graph, GraphModule, Node, map_arg

from torchrepro.cut.units import CALLS
from torchrepro.graph_text.annotations import NOTE_KEY, TensorNote, note_of_node
from torchrepro.nouns.repro import Repro

Path = tuple[int | str, ...]
_SLICE = ("start", "stop", "step")
_EXAMPLES = ("val", "example_value", "tensor_meta", "unbacked_bindings", NOTE_KEY)


@dataclass(frozen=True, slots=True)
class Literal:
    """A value in the arguments of a node: `("args", 1, 0)` is the first of its second argument."""

    node: str
    path: Path


def literals_of(node: Node, kind: type) -> Iterator[tuple[Literal, Any]]:
    """The values of one type in a node's arguments, however deep."""
    if node.op not in CALLS:
        return
    for where, held in (("args", node.args), ("kwargs", node.kwargs)):
        for path, value in _leaves(held, (where,)):
            if type(value) is kind:
                yield Literal(node.name, path), value


def with_literals(repro: Repro, values: Mapping[Literal, Any]) -> Repro:
    """The repro with other values in its arguments.

    What nodes were noted to compute is forgotten: it was about other sizes and dtypes. Names of sizes that
    are symbols stay with the inputs.
    """
    graph = Graph()
    copies: dict[Node, Node] = {}
    by_node: dict[str, dict[Path, Any]] = {}
    for literal, value in values.items():
        by_node.setdefault(literal.node, {})[literal.path] = value
    shapes = dict(zip(_inputs(repro.graph), repro.inputs, strict=False))
    for node in repro.graph.graph.nodes:
        changed = by_node.get(node.name, {})
        args = replaced(node.args, ("args",), changed) if changed else node.args
        kwargs = replaced(node.kwargs, ("kwargs",), changed) if changed else node.kwargs
        made = graph.create_node(
            node.op,
            node.target,
            map_arg(args, copies.__getitem__),
            map_arg(kwargs, copies.__getitem__),
            name=node.name,
            type_expr=node.type,
        )
        made.meta = {key: value for key, value in node.meta.items() if key not in _EXAMPLES}
        note = _note(node, shapes.get(node.name))
        if note is not None:
            made.meta[NOTE_KEY] = note
        copies[node] = made
    return replace(repro, graph=GraphModule(repro.graph, graph, class_name="Graph"))


def _inputs(module: GraphModule) -> list[str]:
    return [node.name for node in module.graph.nodes if node.op == "placeholder"]


def _note(node: Node, value: Any) -> Any:
    """What is still true of a node: sizes that are symbols, and those that are known only at run time."""
    note = note_of_node(node)
    if node.op == "placeholder":
        if not isinstance(note, TensorNote):
            return note
        sizes = tuple(
            size if isinstance(size, str) else actual
            for size, actual in zip(note.shape, getattr(value, "shape", note.shape), strict=False)
        )
        symbolic = any(isinstance(size, str) for size in sizes)
        return replace(note, shape=sizes, stride=None) if symbolic else None
    return note if "unbacked_bindings" in node.meta or _is_unbacked(note) else None


def _is_unbacked(note: Any) -> bool:
    if isinstance(note, tuple):
        return any(map(_is_unbacked, note))
    sizes = note.shape if isinstance(note, TensorNote) else (getattr(note, "expression", None),)
    return any(isinstance(size, str) and size.lstrip("(").startswith("u") for size in sizes)


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, slice):
        for name in _SLICE:
            yield from _leaves(getattr(value, name), (*path, name))
    elif not isinstance(value, Node):
        yield path, value


def replaced(value: Any, path: Path, changed: Mapping[Path, Any]) -> Any:
    """The same structure, in plain containers, with some leaves changed."""
    if path in changed:
        return changed[path]
    if isinstance(value, tuple | list):
        items = [replaced(item, (*path, index), changed) for index, item in enumerate(value)]
        if hasattr(value, "_make"):
            return value._make(items)
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: replaced(item, (*path, key), changed) for key, item in value.items()}
    if isinstance(value, slice):
        return slice(*(replaced(getattr(value, name), (*path, name), changed) for name in _SLICE))
    return value
