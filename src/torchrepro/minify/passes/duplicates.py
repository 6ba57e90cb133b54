"""Merge equal ops on equal operands: readers of the second read the first.

Two `arange(8)` cannot be cut, because their readers would get inputs where they need what the compiler
computes. Two random draws become one as well: the oracle judges whether that matters.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Graph, Node, map_arg

from torchrepro.cut.units import CALLS
from torchrepro.edit.surgery import edited, has_effects, put_in_place_of
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro


def merge_duplicates(problem: Problem) -> None:
    """Merge all duplicate ops that the failure does not need."""
    firsts = _duplicates(problem.best.graph.graph)

    def merged(best: Repro, gone: Sequence[str]) -> Repro:
        """Return the repro with the readers of each op reading the first op that computes the same."""

        def edit(graph: Graph) -> None:
            nodes = {node.name: node for node in graph.nodes}
            for name in gone:
                put_in_place_of(nodes[name], nodes[firsts[name]])

        return edited(best, edit)

    problem.leave_out(list(firsts), merged)


def _duplicates(graph: Graph) -> dict[str, str]:
    """Return the names of ops that repeat an earlier op, each with the name of that op."""
    found: dict[str, str] = {}
    known: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op not in CALLS or has_effects(node):
            continue
        first = known.setdefault(_call(node, found), node)
        if first is not node:
            found[node.name] = first.name
    return found


def _call(node: Node, merged: dict[str, str]) -> str:
    """Return the text of a call, equal for equal calls: merged operands have the first one's name."""

    def name(operand: Node) -> str:
        return f"%{merged.get(operand.name, operand.name)}"

    call = map_arg((node.args, dict(node.kwargs)), name)
    return f"{node.op} {node.target!r} {call!r}"
