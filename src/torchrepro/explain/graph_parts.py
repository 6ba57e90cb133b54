"""Vary the graph: other numbers and switches as arguments, and siblings of its ops."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from torchrepro.cut.subgraph import CALLS
from torchrepro.edit.surgery import edited, writes_by_name
from torchrepro.explain.rules import label_of
from torchrepro.explain.sentences import listed, sentence_on_values
from torchrepro.explain.subject import Evidence, Outcome, Subject, Trial, amounts, sentence_on_choices, verbed
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import Area
from torchrepro.script.names import parameter_names
from torchrepro.torch_api.ops import OpOverload, op_name

_VARIED = 3
"""Ops that are varied: a repro with more of them is not a minimal one."""
_FLOATS = (0.0, 1.0, -1.0, 0.5, 2.0)
_INTEGERS = (0, 1, -1, 2)

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


def varied_ops(repro: Repro) -> list[Node]:
    """Return the first few ops of a repro, not those of graphs in its graph."""
    return [node for node in repro.graph.graph.nodes if node.op in CALLS][:_VARIED]


def with_node(repro: Repro, node: Node, edit: Callable[[Node], None]) -> Repro:
    """Return the repro with a node of its graph changed."""

    def change(graph: Graph) -> None:
        edit(next(copy for copy in graph.nodes if copy.name == node.name))

    return edited(repro, change)


def ops(repro: Repro) -> list[Subject]:
    """Each op replaced by its nearest siblings."""
    return [_siblings(repro, node) for node in varied_ops(repro)]


def _siblings(repro: Repro, node: Node) -> Subject:
    name = op_name(node.target)
    subject = Subject(
        Area.OPS,
        f"op {node.name}",
        name,
        (),
        lambda evidence, trials: sentence_on_choices(name, evidence),
        lambda evidence: f"which op ({sentence_on_choices(name, evidence)})",
    )
    found = []
    for other in _near(name):
        target = _target_of_sibling(node, name, other)
        if target is not None:

            def edit(copy: Node, target: Any = target) -> None:
                copy.target = target

            found.append(subject.varied(other, with_node(repro, node, edit), f"{other} in place of {name}"))
    return subject.having(found)


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


def arguments(repro: Repro) -> list[Subject]:
    """Each number and switch that is written in the graph, not computed in it, changed."""
    found = []
    for node in varied_ops(repro):
        keyed: list[tuple[int | str, Any]] = [*enumerate(node.args), *node.kwargs.items()]
        found += [
            _argument(repro, node, key, value)
            for key, value in keyed
            if isinstance(value, bool | int | float)
        ]
    return found


def _argument(repro: Repro, node: Node, key: int | str, own: Any) -> Subject:
    name, op = _argument_name(node, key), op_name(node.target)
    what = f"{name} of {op}"

    def sentence(evidence: Evidence, trials: Sequence[Trial]) -> str:
        if isinstance(own, float):
            failing = [own, *amounts(trials, Outcome.FAILS)]
            return sentence_on_values(failing, amounts(trials, Outcome.PASSES), what)
        if not evidence.passing:
            return f"{what}: {listed(evidence.failing)} alike"
        return f"{what}: {verbed(evidence.failing, 'fail')}, {verbed(evidence.passing, 'pass')}"

    subject = Subject(Area.ARGUMENTS, f"{op}.{name}", _label(own), (), sentence)
    found = []
    for value in _alternatives(own):

        def edit(copy: Node, value: Any = value) -> None:
            if isinstance(key, int):
                copy.update_arg(key, value)
            else:
                copy.update_kwarg(key, value)

        amount = None if isinstance(value, bool) else value
        words = f"{name}={_label(value)} in {op}"
        changed = with_node(repro, node, edit)
        found.append(subject.varied(_label(value), changed, words, amount=amount, step=abs(value - own)))
    return subject.having(found)


def _alternatives(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    usual = (value - 1, value + 1, *_INTEGERS) if isinstance(value, int) else (*_FLOATS, value / 2, value * 2)
    return [other for other in dict.fromkeys(usual) if other != value]


def _argument_name(node: Node, key: int | str) -> str:
    """What the op calls its argument; its place where that is unknown."""
    if isinstance(key, str):
        return key
    target: Any = getattr(torch.Tensor, node.target, None) if isinstance(node.target, str) else node.target
    names = parameter_names(target)
    plain = key < len(names) and names[key].isidentifier() and names[key] not in ("args", "a", "b")
    return names[key] if plain else f"argument {key + 1}"


def _label(value: Any) -> str:
    return str(value) if isinstance(value, bool) else label_of(value)
