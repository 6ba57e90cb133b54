"""Copy the nodes of one graph into another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node


def spliced(module: GraphModule, body: GraphModule, operands: Sequence[Any]) -> Any:
    """Copy the nodes of a body to where nodes are being inserted; what its output node returns.

    `operands` stand for its inputs. Names stay where they are free.
    """
    copies: dict[Node, Any] = {}
    given = iter(operands)
    returned: Any = None
    for node in body.graph.nodes:
        if node.op == "placeholder":
            copies[node] = next(given)
        elif node.op == "output":
            returned = torch.fx.map_arg(node.args[0], copies.__getitem__)
        else:
            copies[node] = _copied(module, body, node, copies)
    return returned


def _copied(module: GraphModule, body: GraphModule, node: Node, copies: Mapping[Node, Any]) -> Node:
    target = node.target
    if node.op in ("get_attr", "call_module"):
        target = _adopt(module, str(target), reach(body, str(target)))
    args = torch.fx.map_arg(node.args, copies.__getitem__)
    kwargs = torch.fx.map_arg(node.kwargs, copies.__getitem__)
    made = module.graph.create_node(node.op, target, args, kwargs, name=node.name, type_expr=node.type)
    made.meta = dict(node.meta)
    return made


def _adopt(module: GraphModule, path: str, value: Any) -> str:
    """Make a value of a nested graph one of the outer graph, under a name that is free there."""
    wanted = name = path.replace(".", "_")
    count = 0
    while hasattr(module, name) and getattr(module, name) is not value:
        count += 1
        name = f"{wanted}_{count}"
    setattr(module, name, value)
    return name


def reach(module: Any, path: str) -> Any:
    """What a dotted path leads to; None where it leads nowhere."""
    for part in path.split("."):
        module = getattr(module, part, None)
    return module
