"""What the order counts beside nodes and elements: ops that run, gradients, how plain the arguments are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchrepro.cut.units import CALLS
from torchrepro.nouns.repro import Place, Repro

USUAL_DTYPES = (torch.float32, torch.int64, torch.bool)
"""What torch makes of numbers that are written down."""


def count_runs(module: GraphModule) -> int:
    """Ops as often as they stand to run: those of a nested graph once for each call of it.

    So a call of a graph is never smaller than the ops of that graph put in its place.
    """
    total = 0
    for node in module.graph.nodes:
        if node.op not in CALLS:
            continue
        total += 1
        called = [node.target] if node.op == "call_module" else _graphs_given_to(node)
        for path in called:
            nested = _reach(module, str(path))
            total += count_runs(nested) if isinstance(nested, GraphModule) else 0
    return total


def asks_for_gradients(repro: Repro) -> int:
    """0: no gradients. 1: inputs ask for them, though none are computed. 2: there is a backward call, too.

    Below AOT there are none, whatever the inputs say.
    """
    if repro.place is Place.AFTER_AOT:
        return 0
    given = (*repro.inputs, *repro.graph.parameters())
    asked = any(isinstance(value, torch.Tensor) and value.requires_grad for value in given)
    recorded = repro.ambient.grad_enabled and not repro.ambient.inference_mode
    return int(asked) + int(asked and recorded and repro.backward is not False)


def cost_of_arguments(module: GraphModule) -> int:
    """How far the numbers in a graph are from those that a person would write first."""
    own = sum(cost_of(value) for node in module.graph.nodes for value in (*node.args, *node.kwargs.values()))
    nested = (child for child in module.children() if isinstance(child, GraphModule))
    return own + sum(cost_of_arguments(child) for child in nested)


def cost_of(value: Any) -> int:
    """Of whole numbers 0, then 1, then the smaller one; of others 1.0, then 0.0, then the shorter one."""
    if isinstance(value, bool):
        return 0
    if isinstance(value, int):
        return abs(value) if abs(value) < 2 else 1 + abs(value).bit_length()
    if isinstance(value, float):
        return 0 if value == 1 else 1 if value == 0 else 1 + len(repr(value))
    if isinstance(value, tuple | list):
        return sum(map(cost_of, value))
    if isinstance(value, slice):
        return cost_of((value.start, value.stop, value.step))
    if isinstance(value, torch.dtype):
        return int(value not in USUAL_DTYPES)
    return 0


def _graphs_given_to(node: Node) -> Iterator[Any]:
    return (operand.target for operand in node.all_input_nodes if operand.op == "get_attr")


def _reach(module: Any, path: str) -> Any:
    for part in path.split("."):
        module = getattr(module, part, None)
    return module
