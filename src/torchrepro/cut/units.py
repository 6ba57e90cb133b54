"""Units: what can be taken out of a graph in one piece.

An op is a unit together with the nodes that only take its results apart. What opens and closes a region
(autocast) is one unit, too: half of it would be another program.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import torch
from torch.fx import Graph, Node

from torchrepro.nouns.ambient import Ambient, Autocast
from torchrepro.torch_api.modes import enter_autocast, exit_autocast, set_grad_enabled

CALLS = ("call_function", "call_method", "call_module")
_ENTER = enter_autocast
_EXIT = exit_autocast
_SET_GRAD = set_grad_enabled


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes, by name, that stay or go together; the first is the op itself."""

    nodes: tuple[str, ...]
    is_state: bool = False
    """It computes nothing: it changes the state for what comes after."""

    @property
    def name(self) -> str:
        return self.nodes[0]


def units_of(graph: Graph, several: Collection[str]) -> list[Unit]:
    """Every call in a graph belongs to exactly one unit; in the order of the graph.

    `several` names the nodes that return several values (`Recording.several`).
    """
    exits = {node.args[0]: node for node in graph.nodes if node.target is _EXIT}
    return [unit for node in graph.nodes for unit in _unit_at(node, exits, several)]


def _unit_at(node: Node, exits: dict[object, Node], several: Collection[str]) -> Iterator[Unit]:
    if node.op not in CALLS or takes_apart(node, several) or node.target is _EXIT:
        return
    if node.target is _ENTER:
        closing = (exits[node].name,) if node in exits else ()
        yield Unit((node.name, *closing), is_state=True)
    else:
        parts = tuple(part.name for part in parts_of(node, several))
        yield Unit((node.name, *parts), is_state=node.target is _SET_GRAD)


def parts_of(node: Node, several: Collection[str]) -> list[Node]:
    """The nodes that take the results of an op apart, nested ones included."""
    found = [user for user in node.users if takes_apart(user, several)]
    return [part for user in found for part in (user, *parts_of(user, several))]


def takes_apart(node: Node, several: Collection[str]) -> bool:
    """Whether a node takes one of several values out of what an op returned."""
    source = node.args[0] if node.args else None
    return node.target is operator.getitem and isinstance(source, Node) and source.name in several


def ambient_at(graph: Graph, around: Ambient) -> dict[str, Ambient]:
    """The state in which each node runs: what stood around the call, and the regions of the graph."""
    found: dict[str, Ambient] = {}
    open_: list[tuple[Node, Ambient]] = []
    current = around
    for node in graph.nodes:
        if node.target is _ENTER:
            open_.append((node, current))
            current = _inside(current, node)
        elif node.target is _EXIT and open_ and node.args[0] is open_[-1][0]:
            _, current = open_.pop()
        elif node.target is _SET_GRAD and isinstance(node.args[0], bool):
            current = replace(current, grad_enabled=node.args[0])
        found[node.name] = current
    return found


def _inside(ambient: Ambient, enter: Node) -> Ambient:
    device, dtype, enabled, cache = (*enter.args, None, None, None, None)[:4]
    if not isinstance(device, str):
        return ambient
    chosen = dtype if isinstance(dtype, torch.dtype) else torch.get_autocast_dtype(device)
    cast = Autocast(device, str(chosen).removeprefix("torch."), enabled is not False, cache is not False)
    others = tuple(other for other in ambient.autocast if other.device != device)
    return replace(ambient, autocast=(*others, cast) if cast.enabled else others)
