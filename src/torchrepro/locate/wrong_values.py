"""The values inside a graph: the first wrong one, the first NaN or Inf, and how the error grows.

All values are watched at once where they fit into memory: one compile. Else, or where so many outputs make
the failure vanish, some are watched: of the values that the first wrong one depends on and no right one does,
some again. With one value at a time that is a bisection of the graph, as git does it with commits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from torchrepro.cut.watched_values import first_wrong
from torchrepro.locate.watched_graph import OF_VALUES, Odd, Seen, Watching, whereabouts
from torchrepro.nouns.results import Birth, Growth

_FEWER = 8
"""By how much fewer values are watched where so many were too many."""


@dataclass(frozen=True, slots=True)
class Traced:
    """How far a wrong result could be traced back."""

    node: str | None = None
    """The first that is wrong while what it reads is fine."""
    shows: bool = False
    """Whether the failure is still there with values watched."""
    unseen: bool = False
    """Nothing could be seen: with values watched, the graph fails in another way or is too large."""
    inherited: bool = False
    """Wrong values were seen, and each is what its op had to make of its operands."""


def trace(watching: Watching, *, at_once: int, left: Callable[[], int]) -> Traced:
    """Watch at most so many values at a time, while compiles are left."""
    suspects = watching.values if at_once > 1 else _behind_wrong_results(watching)
    ancestry, shows = watching.ancestry, False
    top: str | None = None
    while suspects and left() > 0:
        count = min(at_once, watching.at_a_time(suspects))
        done = count >= len(suspects)
        chosen = _with_operands(watching, suspects) if done else _spread(watching, suspects, top, count)
        sighting = watching.watch(chosen)
        if sighting is None:
            if count == 1:
                return Traced(top, shows, unseen=not shows)
            at_once = max(1, count // _FEWER)
            continue
        shows = shows or sighting.shows
        wrong = [name for name in chosen if watching.seen[name].wrong]
        if done or not shows:
            return _conclusion(watching, shows)
        # What the first wrong one depends on, and no right one does.
        bits = ancestry.bits(suspects)
        if wrong:
            top = wrong[0]
            bits &= ancestry.before(top)
        for name in set(chosen) - set(wrong):
            # Where nothing is wrong any more, watching this value has made the failure vanish.
            bits &= ~(ancestry.before(name) if sighting.shows else ancestry.bits([name]))
        suspects = ancestry.among(suspects, bits)
    return Traced(shows=shows, unseen=not shows)


def _conclusion(watching: Watching, shows: bool) -> Traced:
    """The first op that is wrong by itself, or, where that is not known, whose operands are all right."""
    wrong = {name for name, seen in watching.seen.items() if seen.wrong}
    own = {name: watching.seen[name].at_fault for name in wrong}
    found = first_wrong(watching.repro.graph.graph, wrong, own)
    return Traced(found, shows, inherited=bool(wrong) and found is None)


def _with_operands(watching: Watching, suspects: Sequence[str]) -> list[str]:
    """With what they read, where that fits: an op is judged on the operands that it had."""
    wider = watching.operands(suspects)
    return wider if watching.at_a_time(wider) >= len(wider) else list(suspects)


def _spread(watching: Watching, suspects: Sequence[str], top: str | None, count: int) -> list[str]:
    if count > 1:
        return [suspects[(place + 1) * len(suspects) // count - 1] for place in range(count)]
    ancestry = watching.ancestry
    all_of_them = ancestry.bits(suspects)

    def evenness(name: str) -> int:
        before = (ancestry.before(name) & all_of_them).bit_count()
        return min(before, len(suspects) - before)

    return [max((name for name in suspects if name != top), key=evenness)]


def _behind_wrong_results(watching: Watching) -> list[str]:
    """The values that the wrong results of the graph depend on; none where no result is wrong."""
    comparison = watching.inquiry.verdict.comparison
    results: Any = watching.repro.graph.graph.output_node().args[0]
    if comparison is None or not isinstance(results, tuple | list):
        return []
    bits = 0
    for leaf in comparison.differing:
        result = leaf.where.owner(results, ())
        if isinstance(result, Node):
            bits |= watching.ancestry.before(result.name)
    return watching.ancestry.among(watching.values, bits)


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


def find_birth(watching: Watching | None) -> Birth | None:
    """None where every value is finite, or meant not to be: a mask of infinities that the truth has, too."""
    if watching is None:
        return None
    birth = Birth(
        _born(watching, lambda seen: seen.eager_odd), _born(watching, lambda seen: seen.compiled_odd or Odd())
    )
    return birth if birth.eager or birth.compiled else None


def _born(watching: Watching, side: Callable[[Seen], Odd]) -> str:
    """First what float64 knows to be finite, an overflow included; else a NaN that it has as well."""
    has_truth = any(seen.eager is not None for seen in watching.seen.values())
    kinds: list[Callable[[Odd], int]] = [lambda odd: odd.strange, lambda odd: odd.nan]
    if not has_truth:
        kinds.append(lambda odd: odd.infinite)
    for count in kinds:
        for name in watching.values:
            if _has(watching, name, side, count):
                operands = [operand.name for operand in watching.nodes[name].all_input_nodes]
                if not any(_has(watching, each, side, count) for each in operands):
                    return next((each for each in operands if each in watching.nan_inputs), name)
    return ""


def _has(watching: Watching, name: str, side: Callable[[Seen], Odd], count: Callable[[Odd], int]) -> bool:
    seen = watching.seen.get(name)
    return seen is not None and count(side(seen)) > 0
