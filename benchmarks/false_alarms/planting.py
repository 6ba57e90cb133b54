"""Plant an error of some units in the last place into one op in the middle of what inductor compiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch._inductor.config as inductor_config
from torch.fx import Graph, Node

aten = torch.ops.aten


CHOOSES = frozenset(
    [
        "clone",
        "copy",
        "_to_copy",
        "convert_element_type",
        "full",
        "empty",
        "zeros",
        "where",
        "relu",
        "index",
        "_unsafe_index",
        "slice",
        "cat",
        "clamp",
        "clamp_min",
        "clamp_max",
        "amax",
        "amin",
        "max",
        "min",
        "maximum",
        "minimum",
        "scatter",
        "scatter_reduce",
        "gather",
        "embedding",
        "flip",
        "roll",
        "sort",
        "rand",
        "randn",
    ]
)
"""Ops that move or choose values. They do not round, and others may count on getting the very values back."""


def computes(node: Node) -> bool:
    """Return whether an op rounds: it has one floating result, and is neither a view nor a choice."""
    value, target = node.meta.get("val"), node.target
    if not (isinstance(target, torch._ops.OpOverload) and isinstance(value, torch.Tensor)):
        return False
    return value.is_floating_point() and not target.is_view and target.overloadpacket.__name__ not in CHOOSES


def eps_of(node: Node) -> float:
    return torch.finfo(node.meta["val"].dtype).eps


def seen_in_results(graph: Graph) -> set[Node]:
    """Return the nodes that reach a result, or what is kept for the backward pass, by floating values alone.

    An error in any other is seen only if it makes a comparison or an index come out differently.
    """
    (output,) = graph.find_nodes(op="output")
    seen = {output}
    for node in reversed(graph.nodes):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.is_floating_point() and seen & node.users.keys():
            seen.add(node)
    return seen


def plant(graph: Graph, ulp: float) -> Node | None:
    """Multiply the result of the middle op by `1 ± ulp * eps`, with a sign that depends on the element.

    One sign for all would be a scale, which a normalisation behind it removes.
    """
    seen = seen_in_results(graph)
    nodes = [node for node in graph.nodes if node.op == "call_function" and computes(node) and node in seen]
    if not nodes:
        return None
    # In mixed precision, what happens in float32 is rounded away right after.
    eps = max(map(eps_of, nodes))
    nodes = [node for node in nodes if eps_of(node) == eps]
    chosen = nodes[len(nodes) // 2]
    readers = list(chosen.users)
    made = chosen
    for target, *others in (
        (aten.mul.Scalar, 1e4),
        (aten.sin.default,),
        (aten.sign.default,),
        (aten.mul.Scalar, ulp * eps),
        (aten.add.Scalar, 1.0),
        (aten.mul.Tensor, chosen),
    ):
        with graph.inserting_after(made):
            made = graph.call_function(target, (made, *others))
        made.meta = dict(chosen.meta)
    for reader in readers:
        reader.replace_input_with(chosen, made)
    return chosen


@contextmanager
def planted(ulp: float) -> Iterator[list[str]]:
    """Plant the error into every forward graph that is compiled in the body; yield the names of the ops.

    A program that draws random numbers is compiled once more, for the check.
    """
    names: list[str] = []

    def plant_in_forward(graph: Graph) -> None:
        inputs = graph.find_nodes(op="placeholder")
        if not any(node.name.startswith("tangents") for node in inputs):
            chosen = plant(graph, ulp)
            if chosen is not None:
                names.append(str(chosen.target))

    with inductor_config.patch(post_grad_custom_pre_pass=plant_in_forward, force_disable_caches=True):
        yield names
