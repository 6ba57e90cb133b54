"""Inline the graphs of higher-order ops.

Where a higher-order op runs its graph once (`invoke_subgraph`, a checkpoint, the branch of a `cond`) the
result is the same. A loop becomes one iteration of it; where that does not run, the loop stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from torchrepro.edit.surgery import Inside, expanded, is_called, reach
from torchrepro.nouns.repro import Repro
from torchrepro.torch_api.ops import HigherOrderOperator
from torchrepro.torch_api.pytree import tree_leaves

_DEPTH = 8
_BODIES = {"cond": slice(0, 2), "while_loop": slice(1, 2), "autograd_function_apply": slice(0, 1)}
"""Which of its graphs an op with several of them runs in the forward direction."""
_LOOPS = ("while_loop", "scan", "map_impl", "associative_scan")


def nested_calls(repro: Repro) -> list[str]:
    """Return the nodes of a graph that can be replaced by the ops of a nested graph."""
    return [node.name for node in repro.graph.graph.nodes if _insides(repro.graph, node)]


def branches(repro: Repro) -> dict[str, str]:
    """Return the `cond` nodes, each with the node of its predicate: True takes the first graph."""
    return {
        node.name: node.args[0].name
        for node in repro.graph.graph.nodes
        if is_called(node, "cond") and isinstance(node.args[0], Node)
    }


def inlined(repro: Repro, names: Collection[str], second: Collection[str] = ()) -> Repro | None:
    """Return the repro with these higher-order ops, and those in their graphs, inlined; None if none can be.

    A `cond` becomes its first branch, one in `second` its other branch.
    """

    def inside(module: GraphModule, node: Node) -> Inside | None:
        found = _insides(module, node) if node.name in names else []
        return found[-1 if node.name in second else 0] if found else None

    found = repro
    for _ in range(_DEPTH):
        before = {node.name for node in found.graph.graph.nodes}
        following = expanded(found, inside)
        if following is None:
            break
        # Next, inline the higher-order ops among the nodes that were inlined.
        names = {node.name for node in following.graph.graph.nodes} - before
        found = following
    return None if found is repro else found


def _insides(module: GraphModule, node: Node) -> list[Inside]:
    """Return the graphs that can replace a node, each with its operands; those of a `cond` in their order.

    Most higher-order ops have one graph, which is called with the operands after it.
    """
    target: Any = node.target
    graphs, operands = _call(module, node)
    if len(graphs) != 1:
        graphs = graphs[_BODIES.get(str(target.name()), slice(0))] if graphs else []
    result = _without_saved if is_called(node, "autograd_function_apply") else None
    inputs = _leaves(operands)
    return [Inside(body, inputs, result) for body in graphs if len(_inputs(body)) == len(inputs)]


def _without_saved(outputs: Any) -> Any:
    """Return the results of an autograd function's forward graph without the values saved for backward."""
    apart = isinstance(outputs, tuple | list) and len(outputs) == 2
    return outputs[0] if apart and isinstance(outputs[0], tuple | list) else outputs


def _call(module: GraphModule, node: Node) -> tuple[list[GraphModule], Sequence[Any]]:
    """Return the graphs among the arguments of a higher-order op, and the arguments after them."""
    if node.op != "call_function" or not isinstance(node.target, HigherOrderOperator):
        return [], ()
    graphs = [
        (place, reach(module, str(arg.target)))
        for place, arg in enumerate(node.args)
        if isinstance(arg, Node) and arg.op == "get_attr"
    ]
    found = [(place, graph) for place, graph in graphs if isinstance(graph, GraphModule)]
    return [graph for _, graph in found], node.args[found[-1][0] + 1 :] if found else ()


def _inputs(body: GraphModule) -> list[Node]:
    return [node for node in body.graph.nodes if node.op == "placeholder"]


def _leaves(operands: Sequence[Any]) -> list[Any]:
    """Return operands, also those in lists: nodes and numbers, not names and options."""
    leaves = tree_leaves(operands, is_leaf=lambda value: isinstance(value, dict))
    return [leaf for leaf in leaves if not isinstance(leaf, str | dict)]


def drop_fixed_inputs(module: GraphModule, is_fixed: Callable[[Node], bool]) -> None:
    """Remove fixed inputs from all graphs nested in a graph, except those of loops."""
    gone: dict[Node, None] = {}
    for node in module.graph.nodes:
        graphs, operands = _call(module, node)
        count = len(_leaves(operands))
        if not graphs or is_called(node, *_LOOPS) or any(len(_inputs(graph)) != count for graph in graphs):
            continue
        columns = list(zip(*map(_inputs, graphs), strict=True))
        fixed = [all(is_fixed(each) and not each.users for each in column) for column in columns]
        places = iter(fixed)
        node.args = (*node.args[: len(node.args) - len(operands)], *_kept(operands, places))
        gone |= {each: None for column, drop in zip(columns, fixed, strict=True) if drop for each in column}
    for placeholder in gone:
        placeholder.graph.erase_node(placeholder)
    for child in module.children():
        if isinstance(child, GraphModule):
            drop_fixed_inputs(child, is_fixed)
            child.recompile()
    module.recompile()


def _kept(operands: Sequence[Any], fixed: Iterator[bool]) -> list[Any]:
    """Return the operands, some of them in lists, without those that are fixed."""
    found: list[Any] = []
    for operand in operands:
        if isinstance(operand, tuple | list):
            found.append(type(operand)(_kept(operand, fixed)))
        elif isinstance(operand, str | dict) or not next(fixed):
            found.append(operand)
    return found
