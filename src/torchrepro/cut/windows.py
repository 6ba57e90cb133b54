"""Windows: single ops on recorded operands. Repeated layers are the same window, on other values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchrepro.cut.record_values import NotRecorded, Recording
from torchrepro.cut.units import Unit, ambient_at, units_of
from torchrepro.nouns.ambient import Ambient
from torchrepro.nouns.repro import Repro


@dataclass(frozen=True, eq=False)
class Window:
    """An op that occurs one or more times in the same form: the same call on operands of the same kind."""

    node: Node
    instances: tuple[Unit, ...]
    ambient: Ambient

    @property
    def name(self) -> str:
        return self.instances[0].name


def windows_of(repro: Repro, recording: Recording) -> list[Window]:
    """The distinct single-op windows of a graph, each with all places where it occurs, in graph order."""
    graph = repro.graph.graph
    by_name = {node.name: node for node in graph.nodes}
    states = ambient_at(graph, repro.ambient)
    given = dict(zip(graph.find_nodes(op="placeholder"), repro.inputs, strict=False))
    found: dict[str, list[Unit]] = {}
    for unit in units_of(graph, recording.several):
        if unit.is_state:
            continue
        key = _form(by_name[unit.name], given, recording, states[unit.name])
        if key is not None:
            found.setdefault(key, []).append(unit)
    return [Window(by_name[units[0].name], tuple(units), states[units[0].name]) for units in found.values()]


def by_ambient(windows: Sequence[Window]) -> list[list[Window]]:
    """Windows that can stand in one graph: those that run in the same state; the largest group first."""
    groups: list[list[Window]] = []
    for window in windows:
        for group in groups:
            if group[0].ambient == window.ambient:
                group.append(window)
                break
        else:
            groups.append([window])
    return sorted(groups, key=len, reverse=True)


def _form(node: Node, given: Mapping[Node, Any], recording: Recording, ambient: Ambient) -> str | None:
    """Equal for two ops that differ in the values of operands alone; None if an operand is not known."""

    def described(operand: Node) -> Any:
        if operand.op == "get_attr":
            return f"attribute {operand.target}"
        if operand.op == "placeholder" and (operand.name, node.name) not in recording.at_use:
            return _described(given[operand])
        return _described(recording.value(operand.name, node.name))

    try:
        operands = [described(operand) for operand in node.all_input_nodes]
    except NotRecorded:
        return None
    numbers = {operand: f"<{number}>" for number, operand in enumerate(node.all_input_nodes)}
    call: Any = torch.fx.map_arg((node.args, dict(node.kwargs)), numbers.__getitem__)
    return f"{node.op} {node.target!s} {call!r} {operands!r} {ambient!r}"


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return (
            f"{value.dtype} {tuple(value.shape)} {tuple(value.stride())} {value.requires_grad} {value.device}"
        )
    return repr(value)
