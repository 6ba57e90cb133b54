"""Shorten lists of operands: `cat([a, b, c])`, `x[i, j] = 0`.

Cutting an op leaves an input in its place; here the place itself is removed.
"""

from __future__ import annotations

from collections.abc import Collection

from torch.fx import Graph, Node

from torchrepro.cut.units import CALLS
from torchrepro.edit.arguments import DROPPED, Literal, replaced
from torchrepro.edit.surgery import edited
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro
from torchrepro.torch_api.ops import HigherOrderOperator


def shorten_lists(problem: Problem) -> None:
    """Reduce lists to the fewest operands with which it still fails."""
    problem.leave_out(_operands_in_lists(problem.best.graph.graph), _without)


def _operands_in_lists(graph: Graph) -> list[Literal]:
    """Return every op's result and every input that is in a list with others."""
    return [
        Literal(node.name, (where, argument, index))
        for node in graph.nodes
        if node.op in CALLS and not isinstance(node.target, HigherOrderOperator)  # their graphs take them all
        for where, held in (("args", dict(enumerate(node.args))), ("kwargs", node.kwargs))
        for argument, value in held.items()
        if isinstance(value, tuple | list) and len(value) > 1
        for index, operand in enumerate(value)
        if isinstance(operand, Node)
    ]


def _without(repro: Repro, operands: Collection[Literal]) -> Repro:
    def edit(graph: Graph) -> None:
        for node in graph.nodes:
            gone = {operand.path: DROPPED for operand in operands if operand.node == node.name}
            if gone:
                node.args = replaced(node.args, ("args",), gone)
                node.kwargs = replaced(node.kwargs, ("kwargs",), gone)

    return edited(repro, edit)
