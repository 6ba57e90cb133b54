"""The outputs of a graph one by one, each with the path under which the judge names it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, Node

from torchrepro.edit.surgery import edited
from torchrepro.nouns.repro import Repro


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
