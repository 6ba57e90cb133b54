"""The units that can be cut out of a graph.

A unit is an op together with the nodes that only unpack its results. The nodes that enter and exit a region
(autocast) are one unit: either without the other would be a different program.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch.fx import Graph, Node

from torchrepro.nouns.repro import Ambient, Autocast
from torchrepro.torch_api.modes import enter_autocast, exit_autocast, set_grad_enabled

CALLS = ("call_function", "call_method", "call_module")


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
    """Return the units of a graph, in graph order; every call belongs to exactly one.

    `several` names the nodes that return several values (`Recording.several`).
    """
    found: list[Unit] = []
    for node in graph.nodes:
        if node.op not in CALLS or takes_apart(node, several) or node.target is exit_autocast:
            continue
        entered = node.target is enter_autocast
        rest = [user for user in node.users if user.target is exit_autocast] if entered else None
        names = [each.name for each in (node, *(parts_of(node, several) if rest is None else rest))]
        found.append(Unit(tuple(names), is_state=entered or node.target is set_grad_enabled))
    return found


def parts_of(node: Node, several: Collection[str]) -> list[Node]:
    """Return the nodes that unpack the results of an op, nested ones included."""
    found = [user for user in node.users if takes_apart(user, several)]
    return [part for user in found for part in (user, *parts_of(user, several))]


def takes_apart(node: Node, several: Collection[str]) -> bool:
    """Return whether a node takes one of several values out of what an op returned."""
    source = node.args[0] if node.args else None
    return node.target is operator.getitem and isinstance(source, Node) and source.name in several


def ambient_at(graph: Graph, around: Ambient) -> dict[str, Ambient]:
    """Return the state in which each node runs: that around the call, and the regions of the graph."""
    found: dict[str, Ambient] = {}
    open_: list[tuple[Node, Ambient]] = []
    current = around
    for node in graph.nodes:
        if node.target is enter_autocast:
            open_.append((node, current))
            current = _inside(current, node)
        elif node.target is exit_autocast and open_ and node.args[0] is open_[-1][0]:
            _, current = open_.pop()
        elif node.target is set_grad_enabled and isinstance(node.args[0], bool):
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
