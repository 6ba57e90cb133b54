"""The outputs of a graph, and ops with several results of which only one is used.

Each output has the path by which the judge names it. An op with several results and the node that takes one
of them become one op: `amax` for `max(...)[0]`.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

from torchrepro.edit.surgery import edited, put_in_place_of
from torchrepro.nouns.repro import Repro
from torchrepro.state.fake_run import run_on_fakes
from torchrepro.torch_api.ops import OpOverload, op_name
from torchrepro.torch_api.pytree import leaves_by_path


@dataclass(frozen=True, slots=True)
class Output:
    """A node that a graph returns, somewhere in what it returns."""

    path: str
    node: str


def outputs_of(repro: Repro) -> list[Output]:
    """Return the outputs in order; a node that is returned twice is listed twice."""
    leaves = leaves_by_path(repro.graph.graph.output_node().args[0], "out")
    return [Output(path, leaf.name) for path, leaf in leaves if isinstance(leaf, Node)]


def is_flat(repro: Repro) -> bool:
    """Return whether the graph returns a node, or a tuple of nodes."""
    returned = repro.graph.graph.output_node().args[0]
    if isinstance(returned, Node):
        return True
    return isinstance(returned, tuple | list) and all(isinstance(value, Node) for value in returned)


def returning(repro: Repro, outputs: Sequence[Output]) -> Repro | None:
    """Return the repro with only these outputs, in a tuple, without the nodes that only the others needed."""
    if not outputs:
        return None

    def edit(graph: Graph) -> None:
        nodes = {node.name: node for node in graph.nodes}
        graph.output_node().args = (tuple(nodes[output.node] for output in outputs),)

    return edited(repro, edit)


# Ops with several results of which only one is used.

_aten = torch.ops.aten
_EXTREMA = {"max": ("amax", "argmax"), "min": ("amin", "argmin")}
_PARTS = ("split", "split_with_sizes", "tensor_split", "chunk")


def taken_apart(repro: Repro) -> list[str]:
    """Return the nodes that take one of several results, where an op exists that computes that one alone."""
    values = run_on_fakes(repro).by_name
    return [node.name for node in repro.graph.graph.nodes if _call_for(node, values) is not None]


def with_single_results(repro: Repro, names: Collection[str]) -> Repro:
    """Return the repro with each of these nodes, and the op whose result it takes, as one op."""
    values = run_on_fakes(repro).by_name

    def edit(graph: Graph) -> None:
        for node in list(graph.nodes):
            call = _call_for(node, values) if node.name in names else None
            if call is not None:
                with graph.inserting_before(node):
                    put_in_place_of(node, graph.call_function(*call))

    return edited(repro, edit)


def _call_for(node: Node, values: Mapping[str, Any]) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the function that computes one of several results, and its arguments; ATen for ATen ops.

    None where a node does not take one of several results, or no op computes that one alone.
    """
    operands: list[Any] = [*node.args, None, None]
    several, place = operands[:2]
    if node.target is not operator.getitem or not isinstance(several, Node) or not isinstance(place, int):
        return None
    args, kwargs, results = several.args, several.kwargs, values.get(several.name)
    x = args[0] if args else None
    if not isinstance(x, Node) or "out" in kwargs or not isinstance(results, tuple | list):
        return None

    def argument(index: int, name: str, default: Any) -> Any:
        return args[index] if index < len(args) else kwargs.get(name, default)

    name, place = op_name(several.target), place % len(results)
    is_aten = isinstance(several.target, OpOverload)
    if name in _EXTREMA:
        dim, keepdim = argument(1, "dim", None), argument(2, "keepdim", False)
        if not isinstance(dim, int):
            return None  # the larger of two tensors
        public, kept = _EXTREMA[name][place], (keepdim,) if keepdim else ()
        target = getattr(_aten, public).default if is_aten else getattr(torch, public)
        return target, (x, [dim] if is_aten and not place else dim, *kept)
    if name == "unbind":
        return _aten.select.int if is_aten else torch.select, (x, argument(1, "dim", 0), place)
    dim = argument(2, "dim", 0)
    if name not in _PARTS or not isinstance(dim, int):
        return None
    sizes = [part.shape[dim] for part in results]  # of the pieces that a tensor is split into
    if not all(isinstance(size, int) for size in sizes):
        return None
    start, end = sum(sizes[:place]), sum(sizes[: place + 1])
    return (
        (_aten.slice.Tensor, (x, dim, start, end))
        if is_aten
        else (torch.narrow, (x, dim, start, end - start))
    )
