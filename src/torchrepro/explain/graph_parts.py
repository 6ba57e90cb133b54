"""Vary the graph: other numbers and booleans as arguments, siblings of its ops."""

from __future__ import annotations

import difflib
from typing import Any

import torch
from torch.fx import Graph, Node

from torchrepro.cut.units import CALLS
from torchrepro.edit.arguments import Slot, with_arguments
from torchrepro.edit.surgery import edited, writes_by_name
from torchrepro.explain.rules import label_of, listed, sentence_on_values
from torchrepro.explain.subject import Evidence, Subject, sentence_on_choices, verbed
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import Area
from torchrepro.script.names import parameter_names
from torchrepro.torch_api.ops import OpOverload, op_name, overload_name

_VARIED = 3
"""How many ops are varied: a repro with more of them is not minimal."""
_FLOATS = (0.0, 1.0, -1.0, 0.5, 2.0)
_INTEGERS = (0, 1, -1, 2)

# Ops that take the same arguments. The one with the most similar name is tried first.
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


def varied_ops(repro: Repro) -> list[Node]:
    """Return the first few ops of a repro, not those of nested graphs."""
    return [node for node in repro.graph.graph.nodes if node.op in CALLS][:_VARIED]


def ops(repro: Repro) -> list[Subject]:
    """Return the ops as subjects: each replaced by its nearest siblings."""
    return [_siblings(repro, node) for node in varied_ops(repro)]


def _siblings(repro: Repro, node: Node) -> Subject:
    name = op_name(node.target)
    subject = Subject(
        Area.OPS,
        f"op {node.name}",
        name,
        lambda evidence: sentence_on_choices(name, evidence),
        lambda evidence: f"which op ({sentence_on_choices(name, evidence)})",
    )
    family: set[str] = set().union(*(names for names in _FAMILIES if name in names))
    near = difflib.get_close_matches(name, sorted(family - {name}), n=2, cutoff=0.3)
    for other in [*([name.removesuffix("_")] if writes_by_name(name) else []), *near]:
        target = _target_of_sibling(node, name, other)
        if target is not None:

            def edit(graph: Graph, target: Any = target) -> None:
                next(copy for copy in graph.nodes if copy.name == node.name).target = target

            subject.add(other, edited(repro, edit), f"{other} in place of {name}")
    return subject


def _target_of_sibling(node: Node, name: str, other: str) -> Any:
    """Return the sibling of an op in the same namespace, with the same overload; None if there is none."""
    target: Any = node.target
    if node.op == "call_method":
        return other if hasattr(torch.Tensor, other) else None
    if isinstance(target, OpOverload):
        packet = getattr(getattr(torch.ops, target.namespace), other, None)
        return getattr(packet, overload_name(target), None)
    for namespace in (torch, torch.nn.functional):
        if getattr(namespace, name, None) is target:
            return getattr(namespace, other, None)
    return None


def arguments(repro: Repro) -> list[Subject]:
    """Return the arguments as subjects: each number and boolean literal in the graph, changed."""
    return [
        _argument(repro, node, place, value)
        for node in varied_ops(repro)
        for place, value in (*enumerate(node.args), *node.kwargs.items())
        if isinstance(value, bool | int | float)
    ]


def _argument(repro: Repro, node: Node, place: Any, own: Any) -> Subject:
    name, op = _argument_name(node, place), op_name(node.target)
    what = f"{name} of {op}"

    def sentence(evidence: Evidence) -> str:
        if isinstance(own, float):
            return sentence_on_values(*evidence.numbers(own), what)
        if not evidence.passing:
            return f"{what}: {listed(evidence.failing)} alike"
        return f"{what}: {verbed(evidence.failing, 'fail')}, {verbed(evidence.passing, 'pass')}"

    subject = Subject(Area.ARGUMENTS, f"{op}.{name}", label_of(own), sentence)
    usual: tuple[Any, ...] = (*_FLOATS, own / 2, own * 2)
    if isinstance(own, int):
        usual = (not own,) if isinstance(own, bool) else (own - 1, own + 1, *_INTEGERS)
    for value in dict.fromkeys(usual):
        if value != own:
            label, amount = label_of(value), None if isinstance(value, bool) else value
            changed = with_arguments(repro, {Slot(node.name, place): value})
            subject.add(label, changed, f"{name}={label} in {op}", amount=amount, step=abs(value - own))
    return subject


def _argument_name(node: Node, place: int | str) -> str:
    """Return the name of the op's parameter; the argument's position where that is unknown."""
    if isinstance(place, str):
        return place
    target: Any = getattr(torch.Tensor, node.target, None) if isinstance(node.target, str) else node.target
    names = parameter_names(target)
    plain = place < len(names) and names[place].isidentifier() and names[place] not in ("args", "a", "b")
    return names[place] if plain else f"argument {place + 1}"
