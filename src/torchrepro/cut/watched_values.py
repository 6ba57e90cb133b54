"""Watch values inside a graph: make them outputs of it, and find the first that is wrong.

Nothing is cut: inputs, symbols, regions and earlier calls stay as they are. Returned values may be fused
differently, and a failure that needs the previous fusion vanishes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchrepro.cut.record_values import Recording
from torchrepro.cut.units import CALLS
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Comparison, LeafComparison


def values_in(graph: Graph, recording: Recording) -> list[str]:
    """Return the nodes whose values can be watched, those that compute a plain tensor, in graph order."""
    return [node.name for node in graph.nodes if node.op in CALLS and node.name in recording.sizes]


def watched(repro: Repro, names: Sequence[str], recording: Recording) -> Repro:
    """Return the repro with the named values as additional outputs, the last ones, in this order.

    A value that is overwritten later is returned as first computed. Backward is left out: only forward
    values are watched, and a loss over all of them would be a different one.
    """
    graph, copies = Graph(), dict[Node, Node]()
    returned: Any = graph.graph_copy(repro.graph.graph, copies)
    seen = {node.name: copy for node, copy in copies.items()}
    clone = torch.ops.aten.clone.default if repro.place is Place.AFTER_AOT else torch.clone
    for name in recording.overwritten.intersection(names):
        with graph.inserting_after(seen[name]):
            seen[name] = graph.call_function(clone, (seen[name],))
    own = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    graph.output((*own, *(seen[name] for name in names)))
    module = GraphModule(repro.graph, graph, class_name="Graph")
    return replace(repro, graph=module, backward=False)


def watched_in(comparison: Comparison, repro: Repro, names: Sequence[str]) -> dict[str, LeafComparison]:
    """Return the comparison of each watched value, by the name of its node."""
    outputs: Any = repro.graph.graph.output_node().args[0]
    first = len(outputs) - len(names)
    found = {leaf.where.output: leaf for leaf in comparison.leaves if not leaf.where.rest}
    return {name: found[first + place] for place, name in enumerate(names) if first + place in found}


def first_wrong(
    graph: Graph, wrong: Collection[str], own: Mapping[str, bool | None] | None = None
) -> str | None:
    """Return the first node that computes a wrong value itself.

    `own` says whether a node does, where known; otherwise it does if all values that it reads are right.
    """
    for node in graph.nodes:
        at_fault = (own or {}).get(node.name)
        if at_fault is None:
            at_fault = not any(operand.name in wrong for operand in node.all_input_nodes)
        if node.name in wrong and at_fault:
            return str(node.name)
    return None


class Ancestry:
    """Which nodes a node depends on, as bits of an integer: 1.5 MB for a graph of 3,400 nodes."""

    def __init__(self, graph: Graph) -> None:
        self.order: list[str] = [node.name for node in graph.nodes]
        self._place = {name: place for place, name in enumerate(self.order)}
        self._before: dict[str, int] = {}
        for node in graph.nodes:
            bits = 1 << self._place[node.name]
            for operand in node.all_input_nodes:
                bits |= self._before[operand.name]
            self._before[node.name] = bits

    def bits(self, names: Collection[str]) -> int:
        """Return a set of nodes as bits."""
        found = 0
        for name in names:
            found |= 1 << self._place[name]
        return found

    def before(self, name: str) -> int:
        """Return the node and all that it depends on, as bits."""
        return self._before[name]

    def among(self, names: Sequence[str], bits: int) -> list[str]:
        """Return those of the names that are in the set, in the order given."""
        return [name for name in names if bits >> self._place[name] & 1]
