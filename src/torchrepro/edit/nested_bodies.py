"""Nested graphs: put their ops in the place of the higher-order op that calls them; drop fixed inputs.

Where the op runs its graph once (`invoke_subgraph`, a checkpoint, the branch of a `cond`) the result is the
same. A loop becomes one turn of it; where that does not run, the loop stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from torch.fx import GraphModule, Node

from torchrepro.edit.surgery import Inside, expanded, reach
from torchrepro.nouns.repro import Repro
from torchrepro.torch_api.ops import HigherOrderOperator

_DEPTH = 8
_BODIES = {"cond": slice(0, 2), "while_loop": slice(1, 2), "autograd_function_apply": slice(0, 1)}
"""Which of its graphs an op with several of them runs in the forward direction."""
_LOOPS = ("while_loop", "scan", "map_impl", "associative_scan")


def nested_calls(repro: Repro) -> list[str]:
    """The nodes of a graph that can be replaced by the ops of a nested graph."""
    return [node.name for node in repro.graph.graph.nodes if _insides(repro.graph, node)]


def branches(repro: Repro) -> dict[str, str]:
    """Nodes that choose between two graphs, and the nodes that say which: True for the first."""
    return {
        node.name: node.args[0].name
        for node in repro.graph.graph.nodes
        if is_called(node, "cond") and isinstance(node.args[0], Node)
    }


def inlined(repro: Repro, names: Collection[str], second: Collection[str] = ()) -> Repro | None:
    """The repro without these higher-order ops, nor those in their graphs; None where none of them can go.

    Of a `cond` the first branch is taken, of those in `second` the other one.
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
        # What came out of the nested graphs is next.
        names = {node.name for node in following.graph.graph.nodes} - before
        found = following
    return None if found is repro else found


def is_called(node: Node, *names: str) -> bool:
    """Whether a node calls a higher-order op of one of these names."""
    return isinstance(node.target, HigherOrderOperator) and str(node.target.name()) in names


def _insides(module: GraphModule, node: Node) -> list[Inside]:
    """The graphs that can stand for a node, with what each is run on; of a `cond` in the order it has them.

    Most ops have one graph, which is called with the operands that come after it.
    """
    graphs, operands = _call(module, node)
    wanted = _BODIES.get(str(node.target.name()), slice(0, int(len(graphs) == 1))) if graphs else slice(0)  # type: ignore[union-attr]
    result = _without_saved if is_called(node, "autograd_function_apply") else None
    inputs = list(_leaves(operands))
    return [Inside(body, inputs, result) for body in graphs[wanted] if len(_inputs(body)) == len(inputs)]


def _without_saved(outputs: Any) -> Any:
    """The forward graph of an autograd function returns, apart from its results, what backward will need."""
    apart = isinstance(outputs, tuple | list) and len(outputs) == 2
    return outputs[0] if apart and isinstance(outputs[0], tuple | list) else outputs


def _call(module: GraphModule, node: Node) -> tuple[list[GraphModule], Sequence[Any]]:
    """The graphs that a higher-order op is given, and the arguments after them."""
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


def _leaves(value: Any) -> Iterator[Any]:
    """Nodes and numbers, also those in lists; names and options are no operands."""
    if isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)
    elif not isinstance(value, str | dict):
        yield value


def drop_fixed_inputs(module: GraphModule, is_fixed: Callable[[Node], bool]) -> None:
    """Take the inputs that are fixed away from all graphs nested in a graph; loops keep theirs."""
    gone: dict[Node, None] = {}
    for node in module.graph.nodes:
        graphs, operands = _call(module, node)
        columns = list(zip(*map(_inputs, graphs), strict=False))
        if not graphs or is_called(node, *_LOOPS) or len(columns) != len(list(_leaves(operands))):
            continue
        fixed = [all(is_fixed(each) and not each.users for each in column) for column in columns]
        places = iter(fixed)
        kept = [part for part in (_kept(operand, places) for operand in operands) if part is not None]
        node.args = (*node.args[: len(node.args) - len(operands)], *kept)
        gone |= {each: None for column, drop in zip(columns, fixed, strict=True) if drop for each in column}
    for placeholder in gone:
        placeholder.graph.erase_node(placeholder)
    for child in module.children():
        if isinstance(child, GraphModule):
            drop_fixed_inputs(child, is_fixed)
            child.recompile()
    module.recompile()


def _kept(operand: Any, fixed: Iterator[bool]) -> Any:
    """An argument without the operands that are fixed; None where it is one itself."""
    if isinstance(operand, tuple | list):
        return type(operand)(part for part in (_kept(item, fixed) for item in operand) if part is not None)
    return None if not isinstance(operand, str | dict) and next(fixed) else operand
