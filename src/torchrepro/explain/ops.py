"""Ops: whether the repro fails with a sibling of its op, and how to change a node of its graph."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from torchrepro.cut.units import CALLS
from torchrepro.edit.surgery import edited, writes_by_name
from torchrepro.explain.sentences import Evidence, sentence_on_choices
from torchrepro.explain.variations import Trial, Variation
from torchrepro.nouns.explanation import Area, Fact
from torchrepro.nouns.repro import Repro
from torchrepro.torch_api.ops import OpOverload, op_name

_VARIED = 3
"""Ops that are varied: a repro with more of them is not a minimal one."""

# Ops that take the same arguments. The one whose name is nearest is what a reader would try first.
_FAMILIES = (
    {"abs", "ceil", "floor", "neg", "round", "sign", "trunc"},
    {"acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh"},
    {"exp", "exp2", "expm1", "log", "log10", "log1p", "log2"},
    {"reciprocal", "rsqrt", "sqrt", "square"},
    {"digamma", "erf", "erfc", "lgamma", "sigmoid"},
    {"add", "div", "fmod", "mul", "pow", "remainder", "sub"},
    {"fmax", "fmin", "maximum", "minimum"},
    {"eq", "ge", "gt", "le", "lt", "ne"},
    {"amax", "amin", "max", "mean", "min", "prod", "sum"},
    {"argmax", "argmin"},
    {"cumprod", "cumsum"},
    {"std", "var"},
    {"elu", "gelu", "hardsigmoid", "hardswish", "leaky_relu", "mish", "relu", "selu", "silu", "softplus"},
    {"hardshrink", "softshrink"},
    {"log_softmax", "softmax"},
)


def propose(repro: Repro) -> list[Variation]:
    """Every op replaced by its nearest siblings."""
    return [other for node in varied_ops(repro) for other in _siblings(repro, node)]


def facts(repro: Repro, trials: Sequence[Trial]) -> list[Fact]:
    """What was found out about ops; nothing where nothing could be tried."""
    found: list[Fact] = []
    for node in varied_ops(repro):
        own = [trial for trial in trials if trial.variation.subject == _subject(node)]
        evidence = Evidence.of(own, own=op_name(node.target))
        if evidence.tried > 1:
            sentence = sentence_on_choices(op_name(node.target), evidence)
            found.append(evidence.fact(Area.OPS, _subject(node), sentence, f"which op ({sentence})"))
    return found


def varied_ops(repro: Repro) -> list[Node]:
    """The ops of a repro, not those of graphs in its graph; the first few of them."""
    return [node for node in repro.graph.graph.nodes if node.op in CALLS][:_VARIED]


def with_node(repro: Repro, node: Node, edit: Callable[[Node], None]) -> Repro:
    """The repro with a node of its graph changed."""

    def change(graph: Graph) -> None:
        edit(next(copy for copy in graph.nodes if copy.name == node.name))

    return edited(repro, change)


def _subject(node: Node) -> str:
    return f"op {node.name}"


def _siblings(repro: Repro, node: Node) -> Iterator[Variation]:
    name = op_name(node.target)
    for other in _near(name):
        target = _target_of_sibling(node, name, other)
        if target is None:
            continue

        def edit(copy: Node, target: Any = target) -> None:
            copy.target = target

        changed = with_node(repro, node, edit)
        yield Variation(Area.OPS, _subject(node), other, changed, f"{other} in place of {name}")


def _near(name: str) -> list[str]:
    """The op out of place if it works in place, and the nearest of its family."""
    family: set[str] = set().union(*(names for names in _FAMILIES if name in names))
    out_of_place = [name.removesuffix("_")] if writes_by_name(name) else []
    return [*out_of_place, *difflib.get_close_matches(name, sorted(family - {name}), n=2, cutoff=0.3)]


def _target_of_sibling(node: Node, name: str, other: str) -> Any:
    """The sibling where the op itself was found: the same namespace, the same overload."""
    target: Any = node.target
    if node.op == "call_method":
        return other if hasattr(torch.Tensor, other) else None
    if isinstance(target, OpOverload):
        packet = getattr(getattr(torch.ops, target.namespace), other, None)
        return getattr(packet, target._overloadname, None)
    for namespace in (torch, torch.nn.functional):
        if getattr(namespace, name, None) is target:
            return getattr(namespace, other, None)
    return None
