"""Windows: single ops on recorded operands, and which of them are wrong.

Repeated layers are the same window on other values. Wrong values are found with one compilation of all
distinct ops next to one another, run on the values of every layer; other failures in `failing_windows.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from torchrepro.cut.batches import SideBySide
from torchrepro.cut.record_values import NotRecorded, Recording
from torchrepro.cut.subgraph import piece, side_by_side
from torchrepro.cut.units import Unit, ambient_at, units_of
from torchrepro.nouns.repro import Ambient, Repro
from torchrepro.nouns.verdict import Verdict


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
    """Return the distinct single-op windows of a graph in graph order, each with all its occurrences."""
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
    """Group windows that can share one graph, those that run in the same state; the largest group first."""
    states: list[Ambient] = []
    for window in windows:
        if window.ambient not in states:
            states.append(window.ambient)
    groups = [[window for window in windows if window.ambient == state] for state in states]
    return sorted(groups, key=len, reverse=True)


def _form(node: Node, given: Mapping[Node, Any], recording: Recording, ambient: Ambient) -> str | None:
    """Return a key, equal for ops that differ only in operand values; None if an operand is not recorded."""

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


_ROUNDS = 64
_WORST = 4

Rounds = Callable[[Sequence[Repro]], Sequence[Sequence[Verdict] | None]]
"""For each compilation, a verdict for each set of its inputs (`verdicts_of_rounds`); None if another one had
a wrong value before this one had its verdicts."""


def alone(repro: Repro, recording: Recording, unit: Unit, window: Window) -> Repro | None:
    """Return a repro of one op, in the state in which it ran."""
    cut = piece(repro, recording, unit.nodes)
    return None if cut is None else replace(cut, ambient=window.ambient)


def wrong_ones(
    repro: Repro, recording: Recording, windows: Sequence[Window], rounds: Rounds, *, parts: int = 1
) -> Iterator[list[tuple[Unit, Window]]]:
    """Yield the ops with wrong results, the worst first, by one compilation of all windows.

    With several `parts`, which are compiled at the same time, those of one part are yielded first, and the
    parts that were not finished then are compiled only if more is wanted.
    """
    groups = [windows[start::parts] for start in range(min(parts, len(windows)))]
    pending = [(group, layers) for group in groups if (layers := _layers(repro, recording, group))]
    while pending:
        wholes = [
            replace(layers[0][0].repro, earlier=tuple(layer.repro.inputs for layer, _ in layers[1:]))
            for _, layers in pending
        ]
        answers = rounds(wholes)
        worst: dict[Window, tuple[float, Unit]] = {}
        for (group, layers), verdicts in zip(pending, answers, strict=True):
            for (layer, units), verdict in zip(layers, verdicts or (), strict=False):
                for leaf in verdict.comparison.differing if verdict.comparison is not None else ():
                    place = layer.owner(leaf)
                    if place is not None and leaf.severity > worst.get(group[place], (-1.0,))[0]:
                        worst[group[place]] = (leaf.severity, units[place])
        ranked = sorted(worst.items(), key=lambda item: -item[1][0])
        yield [(unit, window) for window, (_, unit) in ranked[:_WORST]]
        pending = [part for part, verdicts in zip(pending, answers, strict=True) if verdicts is None]


def _layers(
    repro: Repro, recording: Recording, windows: Sequence[Window]
) -> list[tuple[SideBySide, list[Unit]]]:
    """Return one graph of all windows for each turn; the instances of a window are spread over the turns."""
    count = min(_ROUNDS, max(len(window.instances) for window in windows))
    turns = [
        [window.instances[turn * len(window.instances) // count] for window in windows]
        for turn in range(count)
    ]
    layers = [side_by_side(repro, recording, [unit.name for unit in units]) for units in turns]
    built = [(layer, units) for layer, units in zip(layers, turns, strict=True) if layer is not None]
    return [
        (layer, units)
        for layer, units in built
        if (layer.inputs, layer.outputs) == (built[0][0].inputs, built[0][0].outputs)
    ]


def beside(repro: Repro, recording: Recording, windows: Sequence[Window]) -> Repro | None:
    """Return a repro with all of these ops in one graph, each on its own values."""
    found = side_by_side(repro, recording, [window.name for window in windows])
    return None if found is None else found.repro
