"""Plainer arguments for the ops of a graph: what could stand in the place of each, plainest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import Graph, Node

from torchrepro.cut.units import CALLS
from torchrepro.edit.signatures import Parameter, can_be_left_out, parameter_at, parameters_of
from torchrepro.edit.surgery import edited, has_effects
from torchrepro.edit.values.plainness import cost_of
from torchrepro.nouns.repro import Repro

DROPPED: Any = object()
"""In the place of an argument: leave it to its default."""


@dataclass(frozen=True, slots=True)
class Slot:
    """An argument of a node: its position or its keyword."""

    node: str
    place: int | str
    choices: tuple[Any, ...] = field(default=(), compare=False)
    """What could stand there, plainest first; at most a few."""


def slots_of(repro: Repro) -> list[Slot]:
    """Every argument for which there is something plainer."""
    found = []
    for node in repro.graph.graph.nodes:
        if node.op not in CALLS or has_effects(node) or _is_getitem(node):
            continue
        parameters = parameters_of(node)
        places: list[tuple[int | str, Any]] = [*enumerate(node.args), *node.kwargs.items()]
        for place, value in places:
            # The object that a method belongs to is no argument.
            if place == 0 and node.op == "call_method":
                continue
            choices = list(_choices(value, parameter_at(parameters, place)))
            if can_be_left_out(node, place):
                choices.insert(0, DROPPED)
            if choices:
                found.append(Slot(node.name, place, tuple(choices)))
    return found


def with_arguments(repro: Repro, values: Mapping[Slot, Any]) -> Repro:
    """The repro with other arguments; an input that nothing reads any more is gone."""

    def edit(graph: Graph) -> None:
        by_node: dict[str, dict[int | str, Any]] = {}
        for slot, value in values.items():
            by_node.setdefault(slot.node, {})[slot.place] = value
        for node in list(graph.nodes):
            if node.name in by_node:
                _change(node, by_node[node.name])

    return edited(repro, edit)


def _change(node: Node, values: Mapping[int | str, Any]) -> None:
    kwargs = {name: values.get(name, value) for name, value in node.kwargs.items()}
    args = [values.get(index, value) for index, value in enumerate(node.args)]
    while args and args[-1] is DROPPED:
        args.pop()
    # What stands before an argument that stays cannot be left out: it is written as its default, if any.
    parameters = parameters_of(node)
    for index, value in enumerate(args):
        if value is DROPPED:
            parameter = parameter_at(parameters, index)
            has_default = parameter is not None and parameter.has_default
            args[index] = parameter.default if parameter is not None and has_default else node.args[index]
    node.args = tuple(args)
    node.kwargs = {name: value for name, value in kwargs.items() if value is not DROPPED}


def _choices(value: Any, parameter: Parameter | None) -> Iterator[Any]:
    if parameter is not None and _is_number(value) and _is_number(parameter.default):
        return  # the default is what a reader expects; other numbers are no plainer
    if isinstance(value, Node):
        if parameter is not None and parameter.optional and not parameter.has_default:
            yield None
        return
    for choice in _plainer(value, "" if parameter is None else parameter.name):
        if cost_of(choice) < cost_of(value) or len(repr(choice)) < len(repr(value)):
            yield choice


def _plainer(value: Any, name: str) -> Iterator[Any]:
    if isinstance(value, float):
        yield from (1.0, 0.0, _short(value))
    elif isinstance(value, tuple | list):
        if value and all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            yield from _plainer_list(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        # Dimensions count from 0; other numbers of things mostly from 1.
        if "dim" in name or value < 0:
            yield 0
        yield 1


def _plainer_list(value: Sequence[int]) -> Iterator[Sequence[int]]:
    kind = tuple if isinstance(value, tuple) else list
    plain = kind(min(item, 1) if item > 0 else 0 for item in value)
    if len(value) > 1:
        yield plain[:1]
        yield kind(value[:1])
    yield plain


def _short(value: float) -> float:
    """One digit of it: 0.3535533 is as good as 0.4, and where it is not the oracle says so."""
    return float(f"{value:.0e}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_getitem(node: Node) -> bool:
    """Taking one of several results: another index is another result, not a plainer one."""
    return getattr(node.target, "__name__", "") == "getitem"
