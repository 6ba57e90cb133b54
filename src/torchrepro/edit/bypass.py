"""Bypass ops: what reads an op's result reads one of its operands instead."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchrepro.cut.subgraph import CALLS
from torchrepro.edit.nested_bodies import is_called
from torchrepro.edit.surgery import edited, has_effects, put_in_place_of, rebuilt, with_all_edited
from torchrepro.graph_text.metadata import restore_metadata
from torchrepro.nouns.repro import Repro
from torchrepro.state.fake_run import run_on_fakes

Spot = tuple[str, str]
"""The path of a nested graph, "" for the outermost one, and the name of a node in it."""


def operands_instead(repro: Repro, *, same_size: bool = True) -> dict[Spot, list[str]]:
    """For each op on the way to others: its operands of the same dtype and size, results first."""
    kinds = {
        name: (value.dtype, value.device, value.shape if same_size else None)
        for name, value in run_on_fakes(repro).by_name.items()
        if isinstance(value, torch.Tensor)
    }
    calls = {node.name for node in repro.graph.graph.nodes if node.op in CALLS}
    found = {}
    for node in repro.graph.graph.nodes:
        if any(user.op in CALLS for user in node.users):
            alike = _alike(node, node.all_input_nodes, kinds)
            if alike:
                found["", node.name] = [
                    *(n for n in alike if n in calls),
                    *(n for n in alike if n not in calls),
                ]
    return found


def operands_instead_in_bodies(repro: Repro) -> dict[Spot, list[str]]:
    """For each op in the nested graphs: operands and inputs of its graph that could stand for it.

    The graphs of a `while_loop` are left alone: without `i + 1` eager would not terminate.
    """
    if not any(isinstance(child, GraphModule) for child in repro.graph.children()):
        return {}
    module = copy.deepcopy(repro.graph)
    try:
        restore_metadata(module, repro.inputs, repro.symbols)
    except Exception:
        # A graph that cannot be run on fakes does not tell its sizes.
        return {}
    graphs = {path: each.graph for path, each in module.named_modules() if isinstance(each, GraphModule)}
    loops = {
        f"{path}.{argument.target}".removeprefix(".")
        for path, graph in graphs.items()
        for node in graph.nodes
        if is_called(node, "while_loop")
        for argument in node.args[:2]
    }
    found = {}
    for path, graph in graphs.items():
        if path and path not in loops:
            kinds = {node.name: kind for node in graph.nodes if (kind := _floating_kind(node)) is not None}
            inputs = graph.find_nodes(op="placeholder")
            for node in graph.nodes:
                if node.name in kinds and (alike := _alike(node, (*node.all_input_nodes, *inputs), kinds)):
                    found[path, node.name] = alike
    return found


def bypassed(repro: Repro, instead: Mapping[Spot, str], kept: Collection[Spot]) -> Repro | None:
    """The repro without those of the ops that are not kept; None if that leaves none at all."""

    def edit(path: str, graph: Graph) -> None:
        nodes = {node.name: node for node in graph.nodes}
        for spot in instead:
            if spot[0] == path and spot not in kept:
                last = spot[1]
                while (path, last) in instead and (
                    path,
                    last,
                ) not in kept:  # what stands for it may go as well
                    last = instead[path, last]
                put_in_place_of(nodes[spot[1]], nodes[last])

    if any(path for path, _ in instead):
        module = with_all_edited(repro.graph, edit)
        return rebuilt(repro, module.graph, module)
    found = edited(repro, lambda graph: edit("", graph))
    return found if found.ops else None


def _alike(node: Node, others: Iterable[Node], kinds: Mapping[str, Any]) -> list[str]:
    """The names of other values that could take the place of an op's result."""
    if node.op not in CALLS or has_effects(node) or node.name not in kinds:
        return []
    return [other.name for other in others if kinds.get(other.name) == kinds[node.name]]


def _floating_kind(node: Node) -> tuple[Any, ...] | None:
    value = node.meta.get("val")
    if node.op == "get_attr" or not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return None
    return value.dtype, value.device, tuple(value.shape), tuple(value.stride())
