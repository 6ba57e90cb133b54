"""Numbers that nested graphs were given and no longer read: without them on both sides of the call.

`cond` and its like take tensors and symbols, but no plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from torch._ops import HigherOrderOperator
from torch.fx import GraphModule, Node

from torchrepro.minify.editing.splicing import reach


def drop_fixed_inputs(module: GraphModule, is_fixed: Callable[[Node], bool]) -> None:
    """Take the inputs that are fixed away from all graphs nested in a graph, in their place."""
    gone: dict[Node, None] = {}
    for node in module.graph.nodes:
        if isinstance(node.target, HigherOrderOperator):
            gone.update(dict.fromkeys(_drop_operands(module, node, is_fixed)))
    for placeholder in gone:
        placeholder.graph.erase_node(placeholder)
    for child in module.children():
        if isinstance(child, GraphModule):
            drop_fixed_inputs(child, is_fixed)
            child.recompile()
    module.recompile()


def _drop_operands(module: GraphModule, node: Node, is_fixed: Callable[[Node], bool]) -> list[Node]:
    """Shorten the operands of a call; the inputs that its graphs have to lose as well."""
    places = [place for place, arg in enumerate(node.args) if _graph(module, arg) is not None]
    if not places:
        return []
    bodies = [_graph(module, node.args[place]) for place in places]
    inputs = [[n for n in body.graph.nodes if n.op == "placeholder"] for body in bodies if body is not None]
    tail = node.args[places[-1] + 1 :]
    count = sum(_count(operand) for operand in tail)
    if any(len(each) != count for each in inputs):
        return []  # no call of a graph with the operands that come after it
    # What is carried from turn to turn is returned as well, and stands before what is only read.
    last = _count(tail[-1]) if isinstance(tail[-1], tuple | list) else count
    fixed = {
        place
        for place in range(count - last, count)
        if all(is_fixed(each[place]) and not each[place].users for each in inputs)
    }
    node.args = (*node.args[: places[-1] + 1], *_without(tail, fixed))
    return [each[place] for each in inputs for place in fixed]


def _graph(module: GraphModule, arg: Any) -> GraphModule | None:
    found = reach(module, str(arg.target)) if isinstance(arg, Node) and arg.op == "get_attr" else None
    return found if isinstance(found, GraphModule) else None


def _count(operand: Any) -> int:
    """How many inputs of a graph an argument stands for; names stand for none."""
    if isinstance(operand, tuple | list):
        return sum(map(_count, operand))
    return 0 if isinstance(operand, str | dict) else 1


def _without(operands: Any, fixed: Collection[int]) -> list[Any]:
    left = []
    place = 0
    for operand in operands:
        size = _count(operand)
        if isinstance(operand, tuple | list):
            inner = _without(operand, {other - place for other in fixed})
            left.append(tuple(inner) if isinstance(operand, tuple) else inner)
        elif size == 0 or place not in fixed:
            left.append(operand)
        place += size
    return left
