"""Graphs as readable text that is parsed and never executed: `write_graph`, `read_graph`, `first_difference`.

The text is a small subset of Python: one class per graph, one line per node. What text cannot hold (tensors,
generators) stands beside it in `GraphText.constants`. Graph to text to graph is equal node for node.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchrepro.bundle.graph_text import resolver
from torchrepro.bundle.graph_text.equality import first_difference
from torchrepro.bundle.graph_text.parser import parse_module
from torchrepro.bundle.graph_text.printer import HEADER, Constants, GraphPrinter

if TYPE_CHECKING:
    from torch.fx import GraphModule

__all__ = ["GraphText", "first_difference", "read_graph", "write_graph"]


@dataclass(frozen=True)
class GraphText:
    """A graph as text, and beside it what is data and not text."""

    text: str
    constants: Mapping[str, Any]
    """Tensors, parameters, buffers (key: their path) and generators; the same object has one key."""
    needs_trust: tuple[str, ...] = ()
    """Callables that a stranger reads only on `--trust`: the user's functions, operators of own libraries."""


def write_graph(module: GraphModule) -> GraphText:
    """The text of a graph; CannotSerialise, naming it, if something in it cannot be kept as data."""
    constants = Constants()
    printer = GraphPrinter(module, constants)
    text = "\n".join([HEADER, *(line.rstrip() for line in printer.lines())]) + "\n"
    trust = dict.fromkeys(name for used in printer.literals.used if (name := resolver.needs_trust(used)))
    return GraphText(text, constants.by_key, tuple(trust))


def read_graph(text: str, constants: Mapping[str, Any], *, trusted: Collection[str] = ()) -> GraphModule:
    """The graph that a text describes; GraphTextError with the line on anything it may not hold.

    `trusted` names modules whose code the graph may call; they are imported when it does.
    """
    return parse_module(text, constants, trusted)
