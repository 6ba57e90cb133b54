"""Which of many ops beside one another fail, each on the values that it met in the original.

Wrong values are found with one compilation of all distinct ops side by side, run on the values of every
layer; other failures by bisection.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from torchrepro.cut.hints import weight_of
from torchrepro.cut.record_values import Recording
from torchrepro.cut.subgraph import SideBySide, piece, side_by_side
from torchrepro.cut.units import Unit
from torchrepro.cut.windows import Window
from torchrepro.nouns.comparison import LeafComparison
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict

_ROUNDS = 64
_WORST = 4
_PLACE = re.compile(r"\b(out|inputs)\[(\d+)\]")

Rounds = Callable[[Repro], Sequence[Verdict]]
"""A verdict for each set of inputs of one compilation (`rounds.py`)."""
FirstFailing = Callable[[Sequence[Repro | None]], int | None]
"""The index of the first that fails; None stands for one that could not be built."""


def alone(repro: Repro, recording: Recording, unit: Unit, window: Window) -> Repro | None:
    """One op, in the state in which it ran."""
    cut = piece(repro, recording, unit.nodes)
    return None if cut is None else replace(cut, ambient=window.ambient)


def wrong_ones(
    repro: Repro, recording: Recording, windows: Sequence[Window], rounds: Rounds
) -> list[tuple[Unit, Window]]:
    """The ops with wrong results, the worst first, by one compilation of all windows."""
    count = min(_ROUNDS, max(len(window.instances) for window in windows))
    turns = [[_instance(window, turn, count) for window in windows] for turn in range(count)]
    layers = [side_by_side(repro, recording, [unit.name for unit in units]) for units in turns]
    built = [(layer, units) for layer, units in zip(layers, turns, strict=True) if layer is not None]
    alike = [pair for pair in built if _shape(pair[0]) == _shape(built[0][0])]
    if not alike:
        return []
    whole = replace(alike[0][0].repro, earlier=tuple(layer.repro.inputs for layer, _ in alike[1:]))
    worst: dict[int, tuple[float, Unit]] = {}
    for (layer, units), verdict in zip(alike, rounds(whole), strict=False):
        for leaf in verdict.comparison.differing if verdict.comparison is not None else ():
            name = _owner(leaf, layer)
            place = next((place for place, unit in enumerate(units) if unit.name == name), None)
            if place is not None and _badness(leaf) > worst.get(place, (-1.0,))[0]:
                worst[place] = (_badness(leaf), units[place])
    ranked = sorted(worst.items(), key=lambda item: -item[1][0])
    return [(unit, windows[place]) for place, (_, unit) in ranked[:_WORST]]


def _instance(window: Window, turn: int, count: int) -> Unit:
    """The instances of a window, spread evenly over the rounds."""
    return window.instances[turn * len(window.instances) // count]


def _shape(layer: SideBySide) -> tuple[int, int]:
    return len(layer.inputs), len(layer.outputs)


def _owner(leaf: LeafComparison, layer: SideBySide) -> str | None:
    """The op to which a result, a gradient or an input that was written to belongs."""
    found = _PLACE.search(leaf.path)
    if found is None:
        return None
    owners = layer.outputs if found[1] == "out" else layer.inputs
    place = int(found[2])
    return owners[place] if place < len(owners) else None


def _badness(leaf: LeafComparison) -> float:
    return leaf.max_rel if leaf.max_rel == leaf.max_rel else float("inf")


def failing_one(
    repro: Repro, recording: Recording, windows: Sequence[Window], first_failing: FirstFailing, *, parts: int
) -> list[tuple[Unit, Window]]:
    """The op that fails, if one does: bisection, into so many parts at a time.

    Ops that compute nothing are rarely guilty, so the parts are of equal weight and not of equal length.
    """
    weights = {window: weight_of(window, repro, recording) for window in windows}
    pool = sorted(windows, key=lambda window: -weights[window])
    while len(pool) > 1:
        halves = _parts_of_equal_weight(pool, weights, parts)
        found = first_failing([beside(repro, recording, part) for part in halves[:-1]])
        pool = halves[found if found is not None else -1]
    return [(pool[0].instances[0], pool[0])] if pool else []


def beside(repro: Repro, recording: Recording, windows: Sequence[Window]) -> Repro | None:
    """All of these ops in one graph, each on values of its own."""
    found = side_by_side(repro, recording, [window.name for window in windows])
    return None if found is None else found.repro


def _parts_of_equal_weight(
    pool: Sequence[Window], weights: dict[Window, float], count: int
) -> list[list[Window]]:
    """At least two parts, none of them empty."""
    share = sum(weights[window] for window in pool) / min(count, len(pool))
    parts: list[list[Window]] = [[]]
    filled = 0.0
    for position, window in enumerate(pool):
        full = filled >= share * len(parts) - 1e-9
        if parts[-1] and (full or len(pool) - position <= 1 == len(parts)):
            parts.append([])
        parts[-1].append(window)
        filled += weights[window]
    return parts
