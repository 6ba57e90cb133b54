"""Births: where the first value that is not finite comes into being, in eager and in compiled."""

from __future__ import annotations

from collections.abc import Callable

from torchrepro.locate.observations import Odd, Seen
from torchrepro.locate.watched_graph import Watching
from torchrepro.nouns.located import Birth


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
