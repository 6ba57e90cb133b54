"""Counting: a backend that runs a captured graph as it is and remembers how many there were, and how big."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

OPERATIONS = ("call_function", "call_method", "call_module")


@dataclass(slots=True, eq=False)
class Counting:
    """Given to Dynamo and to the front end alike."""

    graphs: list[fx.GraphModule] = field(default_factory=list)
    breaks: Callable[[], list[str]] = list
    """Why graphs ended so far, a reason for each; whoever captures says how that is known."""

    def __call__(self, graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph.forward

    @property
    def ops(self) -> int:
        return sum(node.op in OPERATIONS for graph in self.graphs for node in graph.graph.nodes)
