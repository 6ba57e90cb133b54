"""Follow wrong values back to the first op that is wrong; the growth of errors, the first NaN or Inf."""

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
"""Divisor of the number of watched values when there were too many."""


_LOOKS = 4
"""Maximum number of compiles for values not seen yet; if they do not fit, some are left out evenly."""


@dataclass(frozen=True, slots=True)
class Traced:
    """How far a wrong result could be traced back."""

    node: str | None = None
    """The first that is wrong while its operands are right."""
    shows: bool = False
    """Whether the failure is still there with values watched."""
    unseen: bool = False
    """No value could be watched: with watched values, the graph fails in another way or is too large."""
    inherited: bool = False
    """Wrong values were seen, and each is the right result for its operands."""


def trace(watching: Watching, *, at_once: int, left: Callable[[], int]) -> Traced:
    """Trace wrong results back, with at most `at_once` watched values, while compiles are left."""
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
            # If nothing is wrong any more, watching this value has made the failure vanish.
            bits &= ~(ancestry.before(name) if sighting.shows else ancestry.bits([name]))
        suspects = ancestry.among(suspects, bits)
    return Traced(shows=shows, unseen=not shows)


def _conclusion(watching: Watching, shows: bool) -> Traced:
    """Return the first op that is wrong alone or, if that is unknown, whose operands are all right."""
    wrong = {name: seen.at_fault for name, seen in watching.seen.items() if seen.wrong}
    found = first_wrong(watching.repro.graph.graph, wrong, wrong)
    return Traced(found, shows, inherited=bool(wrong) and found is None)


def _with_operands(watching: Watching, suspects: Sequence[str]) -> list[str]:
    """Return the suspects with their operands, if these fit: an op is judged on its operands."""
    reads = {operand.name for name in suspects for operand in watching.nodes[name].all_input_nodes}
    wanted = reads.union(suspects)
    wider = [name for name in watching.values if name in wanted]
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
    """Return the values that the wrong results of the graph depend on; none if no result is wrong."""
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


def error_growth(watching: Watching | None) -> tuple[Growth, ...]:
    """Return the error of each value, if values are wrong; those watched earlier are not compiled again."""
    if watching is None or watching.inquiry.verdict.kind not in OF_VALUES:
        return ()
    for _ in range(_LOOKS):
        unseen = [name for name in watching.values if name not in watching.seen]
        # As many as fit, evenly spread, so that the plot covers the whole graph, only coarser.
        if not unseen or watching.watch(unseen[:: -(-len(unseen) // watching.at_a_time(unseen))]) is None:
            break
    unknown = Seen("")
    pairs = ((watching.nodes[name], watching.seen.get(name, unknown)) for name in watching.values)
    return tuple(
        Growth(**whereabouts(node), eager=seen.eager, compiled=seen.compiled) for node, seen in pairs
    )


def steepest(watching: Watching) -> str | None:
    """Return the node where the compiled error grows most over its operands' errors; None if none does."""
    known = ((name, seen.compiled or 0.0) for name, seen in watching.seen.items())
    errors = {name: error for name, error in known if math.isfinite(error)}

    def step(name: str) -> float:
        operands = watching.nodes[name].all_input_nodes
        return errors.get(name, 0.0) - max((errors.get(each.name, 0.0) for each in operands), default=0.0)

    found = max(watching.values, key=step, default=None)
    return found if found is not None and step(found) > 0 else None


def find_birth(watching: Watching | None) -> Birth | None:
    """Return where the first NaN or Inf appears; None if there is none but those of the truth (masks)."""
    if watching is None:
        return None
    seen = watching.seen.items()
    eager = _born(watching, {name: one.eager_odd for name, one in seen})
    compiled = _born(watching, {name: one.compiled_odd or Odd() for name, one in seen})
    return Birth(eager, compiled) if eager or compiled else None


def _born(watching: Watching, odd: dict[str, Odd]) -> str:
    """Return the first node with a value that is finite in float64 (overflows included), else with a NaN."""
    has_truth = any(seen.eager is not None for seen in watching.seen.values())
    for count in ("strange", "nan") if has_truth else ("strange", "nan", "infinite"):
        has = {name for name, one in odd.items() if getattr(one, count)}
        for name in (name for name in watching.values if name in has):
            operands = [operand.name for operand in watching.nodes[name].all_input_nodes]
            if has.isdisjoint(operands):
                return next((each for each in operands if each in watching.nan_inputs), name)
    return ""
