"""The smallest sizes with which a graph runs at all: found on fakes, without a single query."""

from __future__ import annotations

import time

from torchrepro.edit.shapes.dimensions import DimensionTable
from torchrepro.nouns.repro import Repro

_SECONDS = 3.0
"""For the search on fakes; half a compile."""


def smallest_that_runs(table: DimensionTable, floor: int) -> Repro | None:
    """The repro with every free dimension at `floor`, or as near to it as it runs; None: no smaller one does.

    Sizes that are multiples of one another (heads and features, chunks of a projection) shrink by a common
    factor, where none of them can shrink alone.
    """
    wish = {each.name: min(each.size, floor) for each in table.free}
    if all(wish[each.name] == each.size for each in table.free):
        return None
    found = table.resized(wish)
    if found is not None:
        return found
    return _by_steps(table, floor)


def _by_steps(table: DimensionTable, floor: int) -> Repro | None:
    deadline = time.monotonic() + _SECONDS
    sizes = {each.name: each.size for each in table.free}
    best: Repro | None = None

    def runs(wish: dict[str, int]) -> bool:
        nonlocal best, sizes
        if wish == sizes or time.monotonic() > deadline:
            return False
        found = table.resized(wish)
        if found is not None:
            best, sizes = found, wish
        return found is not None

    chosen = dict(sizes)
    sizes |= {each.name: each.size for each in table.loose}
    for factor in sorted(set(sizes.values()), reverse=True):
        if factor > 1 and factor in sizes.values():
            runs(
                {
                    name: max(floor, size // factor) if size % factor == 0 else size
                    for name, size in sizes.items()
                }
            )
    before: dict[str, int] = {}
    while sizes != before and time.monotonic() < deadline:
        before = dict(sizes)
        for name in sorted(chosen, key=sizes.__getitem__, reverse=True):
            _one_down(sizes, name, floor, runs)
    return best


def _one_down(sizes: dict[str, int], name: str, floor: int, runs: object) -> None:
    """The smallest size of one dimension with which it runs, the others being as they are."""
    assert callable(runs)
    low, high = floor, sizes[name]
    if high <= floor or runs({**sizes, name: floor}):
        return
    while high - low > 1:
        middle = (low + high) // 2
        if runs({**sizes, name: middle}):
            high = middle
        else:
            low = middle
