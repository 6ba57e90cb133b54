"""Error growth: how far each value is from float64 on both sides, in the order of the graph."""

from __future__ import annotations

import math

from torchrepro.locate.node_origin import whereabouts
from torchrepro.locate.watched_graph import OF_VALUES, Watching
from torchrepro.nouns.located import Growth

_LOOKS = 4
"""Compiles at most for values that have not been seen yet; of what does not fit, some are left out evenly."""


def error_growth(watching: Watching | None) -> tuple[Growth, ...]:
    """For wrong values. What was seen while the op was looked for costs nothing."""
    if watching is None or watching.inquiry.verdict.kind not in OF_VALUES:
        return ()
    _see_the_rest(watching)
    found = []
    for name in watching.values:
        here, seen = whereabouts(watching.nodes[name]), watching.seen.get(name)
        errors = (None, None) if seen is None else (seen.eager, seen.compiled)
        found.append(Growth(here.node, here.op, here.module, here.source, *errors))
    return tuple(found)


def steepest(watching: Watching) -> str | None:
    """The node at which the compiled error grows most over those of its operands; None where none does."""

    errors = {name: seen.compiled for name, seen in watching.seen.items()}

    def error(name: str) -> float:
        known = errors.get(name)
        return known if known is not None and math.isfinite(known) else 0.0

    def step(name: str) -> float:
        operands = watching.nodes[name].all_input_nodes
        return error(name) - max((error(operand.name) for operand in operands), default=0.0)

    found = max(watching.values, key=step, default=None)
    return found if found is not None and step(found) > 0 else None


def _see_the_rest(watching: Watching) -> None:
    for _ in range(_LOOKS):
        unseen = [name for name in watching.values if name not in watching.seen]
        if not unseen:
            return
        looks = math.ceil(len(unseen) / watching.at_a_time(unseen))
        # As many as fit, evenly: with fewer looks than needed the plot is coarse, and whole.
        if watching.watch(unseen[::looks]) is None:
            return
