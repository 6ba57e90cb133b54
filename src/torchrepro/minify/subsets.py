"""The fewest of many items that still fail: 1-minimal, in few questions, several questions at a time.

Most failures need one or two of a thousand items. So nothing is tried first, then the items that are needed
are found one by one, each by bisection: of growing prefixes, the first that fails ends with an item that is
needed. That takes log2(n) questions an item, where halving and complementing take a few times that. A failure
that needs many items (an error that accumulates) would make bisection the slow way; there whole chunks are
taken out, which needs two questions an item at worst.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
FailsFirst = Callable[[Sequence[Sequence[Item]]], int | None]
"""Of several subsets, in the order given, the index of the first that fails; None if none does."""

_FEW = 6
"""Items found one by one before the failure counts as one that needs many."""


def minimal_subset(items: Sequence[Item], fails_first: FailsFirst[Item], *, width: int = 1) -> list[Item]:
    """A 1-minimal part of items that fails. All of them together are taken to fail."""
    indices = list(range(len(items)))

    def first(parts: Sequence[Sequence[int]]) -> int | None:
        return fails_first([[items[index] for index in part] for part in parts])

    if not indices or first([[]]) is not None:
        return []
    needed, rest = _needed_ones(indices, first, width)
    if rest:
        rest = _without_chunks(needed, rest, first, width)
    kept = _one_by_one(sorted({*needed, *rest}), first, width)
    return [items[index] for index in kept]


def _needed_ones(indices: list[int], first: FailsFirst[int], width: int) -> tuple[list[int], list[int]]:
    """Items that are needed, found by bisection, and those that may still be."""
    needed: list[int] = []
    rest = indices
    while len(needed) < _FEW:
        # Invariant: `needed` with all of `rest` fails; `needed` alone does not.
        low, high = 0, len(rest)
        while high - low > 1:
            cuts = _cuts(low, high, width)
            found = first([sorted([*needed, *rest[:cut]]) for cut in cuts])
            if found is None:
                low = cuts[-1]
            else:
                low, high = cuts[found - 1] if found else low, cuts[found]
        needed.append(rest[high - 1])
        rest = rest[: high - 1]
        if not rest or first([sorted(needed)]) is not None:
            return needed, []
    return needed, rest


def _cuts(low: int, high: int, width: int) -> list[int]:
    """Where to cut between a prefix that passes and one that fails: one place for each worker."""
    places = {low + (high - low) * (step + 1) // (width + 1) for step in range(width)}
    return sorted(place for place in places if low < place < high) or [low + 1]


def _without_chunks(needed: list[int], rest: list[int], first: FailsFirst[int], width: int) -> list[int]:
    """What is left of the rest once every chunk that can go has gone, large chunks first."""
    size = max(1, len(rest) // 2)
    while rest:
        start = 0
        while start < len(rest):
            starts = list(range(start, len(rest), size))[:width]
            without = [rest[:place] + rest[place + size :] for place in starts]
            found = first([sorted([*needed, *part]) for part in without])
            if found is None:
                start = starts[-1] + size
            else:
                start, rest = starts[found], without[found]
        if size == 1:
            break
        size = max(1, size // 2)
    return rest


def _one_by_one(kept: list[int], first: FailsFirst[int], width: int) -> list[int]:
    """Until no single item can go. What is asked again here is known already, and costs nothing."""
    place = 0
    passed = 0
    while kept and passed < len(kept):
        places = [(place + step) % len(kept) for step in range(min(width, len(kept)))]
        found = first([kept[:at] + kept[at + 1 :] for at in places])
        if found is None:
            place, passed = (places[-1] + 1) % len(kept), passed + len(places)
        else:
            del kept[places[found]]
            place, passed = places[found] % max(1, len(kept)), 0
    return kept
