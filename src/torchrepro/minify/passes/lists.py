"""Lists of operands become as short as they can: `cat([a, b, c])`, `x[i, j] = 0`.

What cutting an op leaves behind is an input in its place; here the place itself goes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch.fx import Graph, Node

from torchrepro.cut.subgraph import CALLS
from torchrepro.edit.surgery import edited
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro
from torchrepro.torch_api.ops import HigherOrderOperator


@dataclass(frozen=True, slots=True)
class Item:
    """An operand in a list: the node that is given the list, which argument it is, and the place in it."""

    node: str
    argument: int | str
    index: int


def shorten_lists(problem: Problem) -> None:
    """The fewest operands in lists with which it still fails."""
    best = problem.best
    items = items_of(best.graph.graph)
    problem.leave_out(items, lambda gone: _without_items(best, gone))


def items_of(graph: Graph) -> list[Item]:
    """Every op's result and every input that stands in a list with others."""
    return [
        Item(node.name, argument, index)
        for node in graph.nodes
        if node.op in CALLS and not isinstance(node.target, HigherOrderOperator)  # their graphs take them all
        for argument, value in (*enumerate(node.args), *node.kwargs.items())
        if isinstance(value, tuple | list) and len(value) > 1
        for index, operand in enumerate(value)
        if isinstance(operand, Node)
    ]


def _without_items(repro: Repro, items: Collection[Item]) -> Repro:
    gone: dict[str, dict[int | str, set[int]]] = {}
    for item in items:
        gone.setdefault(item.node, {}).setdefault(item.argument, set()).add(item.index)

    def edit(graph: Graph) -> None:
        for node in graph.nodes:
            for argument, indices in gone.get(node.name, {}).items():
                if isinstance(argument, int):
                    node.update_arg(argument, _without(node.args[argument], indices))
                else:
                    node.update_kwarg(argument, _without(node.kwargs[argument], indices))

    return edited(repro, edit)


def _without(values: Any, indices: Collection[int]) -> Any:
    left = [value for index, value in enumerate(values) if index not in indices]
    return tuple(left) if isinstance(values, tuple) else left
