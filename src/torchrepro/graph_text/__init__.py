"""Graphs as readable text that is parsed and never executed: `write_graph`, `read_graph`, `first_difference`.

The text is a small subset of Python: one class per graph, one line per node. What text cannot hold (tensors,
generators) stands beside it in `GraphText.constants`. Graph to text to graph is equal node for node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torchrepro.graph_text import resolver
from torchrepro.graph_text.equality import first_difference
from torchrepro.graph_text.parser import parse_module
from torchrepro.graph_text.printer import HEADER, Constants, GraphPrinter
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket

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
    custom_ops: tuple[OpOverload, ...] = ()
    """Operators that do not come with torch."""
    kernels: Mapping[str, Any] = field(default_factory=dict)
    """The user's Triton kernels by the names that the text has for them."""
    source: str = ""
    """The user's code that the text refers to as `source.NAME`; empty where it needs none."""
    notes: tuple[str, ...] = ()


def overloads_of(targets: Iterable[OpOverload | OpOverloadPacket]) -> tuple[OpOverload, ...]:
    """The operators behind what a graph calls, each once."""
    found: dict[str, OpOverload] = {}
    for target in targets:
        if isinstance(target, OpOverloadPacket):
            found.update(
                {op.name(): op for op in (getattr(target, overload) for overload in target.overloads())}
            )
        else:
            found[target.name()] = target
    return tuple(found.values())


def write_graph(module: GraphModule, source: Callable[[Any], str | None] = lambda value: None) -> GraphText:
    """The text of a graph; CannotSerialise, naming it, if something in it cannot be kept as data.

    `source` gives the names of what stands in a source text (see `graph_text/user_source.py`).
    """
    constants = Constants()
    printer = GraphPrinter(module, constants, source=source)
    text = "\n".join([HEADER, *(line.rstrip() for line in printer.lines())]) + "\n"
    trust = {name: used for used in printer.literals.used if (name := resolver.needs_trust(used))}
    custom = overloads_of(used for used in trust.values() if isinstance(used, OpOverload | OpOverloadPacket))
    return GraphText(text, constants.by_key, tuple(trust), custom, constants.kernels)


def read_graph(
    text: str,
    constants: Mapping[str, Any],
    *,
    trusted: Collection[str] = (),
    kernels: Mapping[str, Any] | None = None,
    source: ModuleType | None = None,
) -> GraphModule:
    """The graph that a text describes; GraphTextError with the line on anything it may not hold.

    `trusted` names modules whose code the graph may call; they are imported when it does. `kernels` are the
    user's Triton kernels (`GraphText.kernels`), `source` the bundle's own code, if somebody vouches for it.
    """
    return parse_module(text, constants, trusted, source, kernels)
