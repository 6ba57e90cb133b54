"""The outputs of a graph, and ops with several results of which only one is used.

Each output has the path under which the judge names it. An op with several results and the node that takes
one of them become one op: `amax` for `max(...)[0]`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from torchrepro.edit.surgery import edited, put_in_place_of
from torchrepro.nouns.repro import Repro
from torchrepro.state.fake_run import run_on_fakes
from torchrepro.torch_api.ops import OpOverload


@dataclass(frozen=True, slots=True)
class Output:
    """A node that a graph returns, somewhere in what it returns."""

    path: str
    node: str


def outputs_of(repro: Repro) -> list[Output]:
    """In the order in which they stand; a node that is returned twice is there twice."""
    return list(_walk(repro.graph.graph.output_node().args[0], "out"))


def is_flat(repro: Repro) -> bool:
    """Whether the graph returns a node, or a tuple of nodes."""
    returned = repro.graph.graph.output_node().args[0]
    if isinstance(returned, Node):
        return True
    return isinstance(returned, tuple | list) and all(isinstance(value, Node) for value in returned)


def returning(repro: Repro, outputs: Sequence[Output]) -> Repro | None:
    """The repro that returns these alone, in a tuple, without what only the others needed."""
    if not outputs:
        return None

    def edit(graph: Graph) -> None:
        nodes = {node.name: node for node in graph.nodes}
        graph.output_node().args = (tuple(nodes[output.node] for output in outputs),)

    return edited(repro, edit)


def _walk(value: Any, path: str) -> Iterator[Output]:
    if isinstance(value, Node):
        yield Output(path, value.name)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, f"{path}[{key!r}]")
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from _walk(item, f"{path}[{index}]")


_aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class _Form:
    """A call that computes one of the results: as a public function, or as an op of ATen."""

    name: str
    args: tuple[Any, ...]
    op: OpOverload
    op_args: tuple[Any, ...]


def taken_apart(repro: Repro) -> list[str]:
    """The nodes that take one of several results, for which there is an op that computes that one alone."""
    values = run_on_fakes(repro).by_name
    return [node.name for node in repro.graph.graph.nodes if _form(node, values) is not None]


def with_single_results(repro: Repro, names: Collection[str]) -> Repro:
    """The repro with one op for each of these nodes and the op that it takes a result of."""
    values = run_on_fakes(repro).by_name

    def edit(graph: Graph) -> None:
        for node in list(graph.nodes):
            form = _form(node, values) if node.name in names else None
            if form is not None:
                with graph.inserting_before(node):
                    put_in_place_of(node, _call(graph, node.args[0], form))

    return edited(repro, edit)


def _call(graph: Graph, several: Any, form: _Form) -> Node:
    """In the style of the op that it stands for."""
    if isinstance(several.target, OpOverload):
        return graph.call_function(form.op, form.op_args)
    return graph.call_function(getattr(torch, form.name), form.args)


def _form(node: Node, values: Mapping[str, Any]) -> _Form | None:
    if node.target is not operator.getitem or not isinstance(node.args[0], Node):
        return None
    several: Node = node.args[0]
    place = node.args[1]
    results = values.get(several.name)
    find = _FORMS.get(_name(several))
    if find is None or not isinstance(place, int) or not isinstance(results, tuple | list):
        return None
    given = _Given(several)
    return find(given, place % len(results), results) if given.is_plain else None


class _Given:
    """The arguments of an op, by position or by name."""

    def __init__(self, node: Node) -> None:
        self._args, self._kwargs = node.args, node.kwargs
        self.x = node.args[0] if node.args else None
        self.is_plain = isinstance(self.x, Node) and "out" not in node.kwargs

    def get(self, place: int, name: str, default: Any) -> Any:
        return self._args[place] if place < len(self._args) else self._kwargs.get(name, default)


_Find = Callable[[_Given, int, Any], _Form | None]


def _name(node: Node) -> str:
    target: Any = node.target
    if isinstance(target, OpOverload):
        return str(target._schema.name.removeprefix("aten::"))
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _extremum(value: tuple[str, OpOverload], index: tuple[str, OpOverload]) -> _Find:
    def find(given: _Given, place: int, results: Any) -> _Form | None:
        dim, keepdim = given.get(1, "dim", None), given.get(2, "keepdim", False)
        if not isinstance(dim, int):
            return None  # the larger of two tensors
        kept = (keepdim,) if keepdim else ()
        name, op = (value, index)[place]
        return _Form(name, (given.x, dim, *kept), op, (given.x, dim if place else [dim], *kept))

    return find


def _part(given: _Given, place: int, results: Any) -> _Form | None:
    """One of the pieces into which a tensor was cut along a dimension."""
    dim = given.get(2, "dim", 0)
    sizes = [part.shape[dim] for part in results]
    if not isinstance(dim, int) or not all(isinstance(size, int) for size in sizes):
        return None
    start, size = sum(sizes[:place]), sizes[place]
    return _Form(
        "narrow", (given.x, dim, start, size), _aten.slice.Tensor, (given.x, dim, start, start + size)
    )


def _row(given: _Given, place: int, results: Any) -> _Form | None:
    args = (given.x, given.get(1, "dim", 0), place)
    return _Form("select", args, _aten.select.int, args)


_FORMS: dict[str, _Find] = {
    "max": _extremum(("amax", _aten.amax.default), ("argmax", _aten.argmax.default)),
    "min": _extremum(("amin", _aten.amin.default), ("argmin", _aten.argmin.default)),
    "split": _part,
    "split_with_sizes": _part,
    "tensor_split": _part,
    "chunk": _part,
    "unbind": _row,
}
