"""Shrink graphs in their place inside of a higher-order op that is guilty itself: ops in them are passed by.

An op of a body is passed by if whoever reads its result reads an earlier value of the same size and dtype.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchrepro.cut.units import CALLS
from torchrepro.edit.surgery import has_effects, put_in_place_of, rebuilt, with_all_edited
from torchrepro.graph_text.metadata import restore_metadata
from torchrepro.nouns.repro import Repro
from torchrepro.torch_api.ops import HigherOrderOperator


@dataclass(frozen=True, slots=True)
class Bypass:
    """An op in a nested graph, and the value that takes its place."""

    graph: str
    node: str
    instead: str


def bypasses(repro: Repro) -> list[Bypass]:
    """Every op in the nested graphs that can be passed by, on its own or together with all others."""
    if not any(isinstance(child, GraphModule) for child in repro.graph.children()):
        return []
    module = copy.deepcopy(repro.graph)
    try:
        restore_metadata(module, repro.inputs, repro.symbols)
    except Exception:
        # A graph that cannot be run on fakes does not tell its sizes.
        return []
    found = []
    for path, nested in module.named_modules():
        if path and isinstance(nested, GraphModule):
            needed = _deciding(module, path)
            found += [bypass for bypass in _in_graph(path, nested.graph) if bypass.node not in needed]
    return found


def without_ops(repro: Repro, passed: Collection[Bypass]) -> Repro:
    """The repro in which these ops are passed by."""

    def edit(path: str, graph: Graph) -> None:
        nodes = {node.name: node for node in graph.nodes}
        for bypass in passed:
            if bypass.graph == path:
                put_in_place_of(nodes[bypass.node], _last(nodes[bypass.instead], path, passed, nodes))

    module = with_all_edited(repro.graph, edit)
    return rebuilt(repro, module.graph, module)


def _last(node: Node, path: str, passed: Collection[Bypass], nodes: dict[str, Node]) -> Node:
    """What stands for a node, if it is passed by itself."""
    for bypass in passed:
        if bypass.graph == path and bypass.node == node.name:
            return _last(nodes[bypass.instead], path, passed, nodes)
    return node


def _in_graph(path: str, graph: Graph) -> list[Bypass]:
    found = []
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for node in graph.nodes:
        if node.op not in CALLS or has_effects(node) or not _is_floating(node):
            continue
        own = [operand for operand in node.all_input_nodes if operand.op != "get_attr"]
        same = [other for other in (*own, *inputs) if _kind(other) == _kind(node)]
        if same:
            found.append(Bypass(path, node.name, same[0].name))
    return found


def _is_floating(node: Node) -> bool:
    """Counters of loops are whole numbers: without `i + 1` eager would not come to an end."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _kind(node: Node) -> Any:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    return value.dtype, tuple(value.shape), tuple(value.stride()), value.device


def _deciding(module: GraphModule, path: str) -> set[str]:
    """The nodes of a loop's graph on which it depends whether the loop ends."""
    owner, _, name = path.rpartition(".")
    outer: Any = module.get_submodule(owner) if owner else module
    for node in outer.graph.nodes:
        if not isinstance(node.target, HigherOrderOperator) or node.target.name() != "while_loop":
            continue
        condition, body = (str(argument.target) for argument in node.args[:2])
        if name == condition:
            return {inner.name for inner in module.get_submodule(path).graph.nodes}  # type: ignore
        if name == body:
            return _read_by(outer.get_submodule(condition), outer.get_submodule(body))
    return set()


def _read_by(condition: GraphModule, body: GraphModule) -> set[str]:
    """What in the body leads to the values that the condition reads."""
    read = [bool(node.users) for node in condition.graph.nodes if node.op == "placeholder"]
    returned: Any = body.graph.output_node().args[0]
    open_ = [value for value, is_read in zip(returned, read, strict=False) if is_read]
    found: set[str] = set()
    while open_:
        node = open_.pop()
        if isinstance(node, Node) and node.name not in found:
            found.add(node.name)
            open_ += node.all_input_nodes
    return found
