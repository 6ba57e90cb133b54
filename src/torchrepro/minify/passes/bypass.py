"""Bypass an op: replace its result by one of its operands.

Cutting an op gives its readers the recorded value, so a failure for which one op has to lead to another keeps
the whole way between the two. Passing ops by makes the way shorter: first those that change neither size nor
dtype, then, where few ops are left, those that change the size, as long as what reads them still runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import torch
from torch.fx import Graph, Node

from torchrepro.cut.subgraph import CALLS
from torchrepro.edit.surgery import edited, has_effects, put_in_place_of
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro
from torchrepro.state.fake_run import run_on_fakes

_CHOICES = 2
"""Operands that are tried in the place of an op."""
_FEW_OPS = 20
"""With more, hardly any set of ops that change sizes can be passed by at once, and the search wanders."""


def pass_ops_by(problem: Problem) -> None:
    """The fewest ops that still fail, where an operand takes the place of those that are left out."""
    if problem.best_size.ops <= 1:
        return
    for kind in (_size_and_dtype, _dtype):
        for choice in range(_CHOICES):
            best = problem.best
            if kind is _dtype and best.ops > _FEW_OPS:
                return
            operands = {
                name: choices[choice]
                for name, choices in operands_instead(best, kind).items()
                if choice < len(choices)
            }
            if operands:
                problem.minimise(list(operands), partial(passed_by, best, operands))


def _size_and_dtype(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.dtype, tensor.device, tensor.shape)


def _dtype(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.dtype, tensor.device)


def operands_instead(
    repro: Repro, kind: Callable[[torch.Tensor], tuple[Any, ...]] = _size_and_dtype
) -> dict[str, list[str]]:
    """By the name of each op on the way to others: its operands of the same kind, results first."""
    values = run_on_fakes(repro).by_name
    kinds = {name: kind(value) for name, value in values.items() if isinstance(value, torch.Tensor)}
    found = {}
    for node in repro.graph.graph.nodes:
        if node.op in CALLS and any(user.op in CALLS for user in node.users) and not has_effects(node):
            own = kinds.get(node.name)
            alike = [each for each in node.all_input_nodes if own is not None and kinds.get(each.name) == own]
            if alike:
                alike.sort(key=lambda each: each.op not in CALLS)
                found[node.name] = [each.name for each in alike]
    return found


def passed_by(repro: Repro, operands: Mapping[str, str], kept: Collection[str]) -> Repro | None:
    """The repro without those of the ops that are not kept; None if that leaves none at all."""

    def edit(graph: Graph) -> None:
        nodes = {node.name: node for node in graph.nodes}
        for name in operands:
            if name not in kept:
                put_in_place_of(nodes[name], _last(name, operands, kept, nodes))

    found = edited(repro, edit)
    return found if found.ops else None


def _last(name: str, operands: Mapping[str, str], kept: Collection[str], nodes: Mapping[str, Node]) -> Node:
    """What stands for an op; its operand may be passed by itself."""
    while name in operands and name not in kept:
        name = operands[name]
    return nodes[name]
