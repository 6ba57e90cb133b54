"""Find the fewest of many items that still fail: 1-minimal, with few queries, several at a time.

Most failures need one or two of a thousand items. So the empty set is tried first, then the needed items are
found one by one, each by bisection: of growing prefixes, the first that fails ends with a needed item. That
takes log2(n) queries an item; ddmin (halves and complements) takes a few times that. For a failure that needs
many items (an error that accumulates) bisection would be slow; there items are removed from one end to the
other, more at a time as long as that succeeds, which is one query for each needed item. At the end the
removal of each single item is tried, because a failure need not be monotonic.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

Item = TypeVar("Item")
FailsFirst = Callable[[Sequence[Sequence[Item]]], int | None]
"""Returns the index of the first of several subsets that fails; None if none does."""

Nearest = Callable[[Sequence[Item], Sequence[Item]], Sequence[Item]]
"""(needed, rest) -> the rest, sorted by distance to the needed items."""

_FEW = 6
"""Needed items to find by bisection before the failure counts as one that needs many."""
_NOT_MANY = 8
"""Once one item is needed, up to this many items are removed one by one instead of bisected."""
_NEAR = (1, 4, 16, 64)
"""How many of the nearest items are tried before bisection begins; few ops also compile faster than many."""


def minimal_subset(
    items: Sequence[Item],
    fails_first: FailsFirst[Item],
    *,
    width: int = 1,
    nearest: Nearest[Item] | None = None,
    suspected: Collection[Item] = (),
) -> list[Item]:
    """Return a 1-minimal subset of items that fails. All of them together are assumed to fail.

    Further needed items are often near the first: a few of the `nearest` items are tried first.
    `suspected` are items that are likely to be needed: the search starts with them.
    """
    search = _Search(list(items), fails_first, width, nearest)
    if not items or search.first([[]]) is not None:
        return []
    needed, rest = search.needed_ones([index for index, item in enumerate(items) if item in suspected])
    rest = search.without_runs(needed, rest)
    return [items[index] for index in search.one_by_one(sorted([*needed, *rest]))]


class _Search(Generic[Item]):
    """Queries each subset, a set of indices, at most once."""

    def __init__(
        self, items: list[Item], fails_first: FailsFirst[Item], width: int, nearest: Nearest[Item] | None
    ) -> None:
        self._items, self._fails_first, self._width, self._nearest = items, fails_first, width, nearest
        self._known: dict[frozenset[int], bool] = {}

    def first(self, parts: Sequence[Sequence[int]]) -> int | None:
        """Return the index of the first part that fails; None if none does."""
        sets = [frozenset(part) for part in parts]
        known = next((index for index, part in enumerate(sets) if self._known.get(part)), None)
        asked = [index for index, part in enumerate(sets[:known]) if part not in self._known]
        if not asked:
            return known
        found = self._fails_first([[self._items[item] for item in sorted(sets[index])] for index in asked])
        for place in range(len(asked) if found is None else found):
            self._known[sets[asked[place]]] = False
        if found is None:
            return known
        self._known[sets[asked[found]]] = True
        return asked[found]

    def needed_ones(self, start: list[int]) -> tuple[list[int], list[int]]:
        """Return the needed items found by bisection, and the items that may be needed too."""
        count, needed = len(self._items), list(start)
        rest = [index for index in range(count) if index not in start]
        if needed and (not rest or self.first([needed]) is not None):
            return needed, []
        while not _needs_many(len(needed), count - len(rest), len(rest)):
            # Invariant: `needed` with all of `rest` fails; `needed` alone does not.
            rest, length = self._shortest_prefix(needed, rest)
            needed.append(rest[length - 1])
            rest = rest[: length - 1]
            if not rest or self.first([needed]) is not None:
                return needed, []
        return needed, sorted(rest)

    def _shortest_prefix(self, needed: list[int], rest: list[int]) -> tuple[list[int], int]:
        """Return the rest sorted by distance, and the length of its shortest prefix to fail with `needed`."""
        by_nearness = bool(needed) and self._nearest is not None
        if needed and self._nearest is not None:
            near = self._nearest(
                [self._items[index] for index in needed], [self._items[index] for index in rest]
            )
            ranks = {id(item): rank for rank, item in enumerate(near)}
            rest = sorted(rest, key=lambda index: ranks.get(id(self._items[index]), len(ranks)))

        def cuts(low: int, high: int) -> list[int]:
            """Return lengths between a prefix that passes and one that fails: one for each worker.

            As long as only the whole is known to fail, short prefixes of the nearest items come first.
            """
            first = by_nearness and high == len(rest)
            near = [cut for cut in _NEAR if low < cut < high] if first else []
            places = {low + (high - low) * step // (self._width + 1) for step in range(1, self._width + 1)}
            return near[: self._width] or sorted(place for place in places if low < place < high) or [low + 1]

        def first_failing(lengths: Sequence[int]) -> int | None:
            return self.first([[*needed, *rest[:length]] for length in lengths])

        return rest, smallest_failing(len(rest), first_failing, cuts)

    def without_runs(self, needed: list[int], rest: list[int]) -> list[int]:
        """Return the rest without the runs of items that can be removed, in one pass from the start."""
        start, size = 0, 1
        while start < len(rest):
            if size > 1:  # the last run was removed: try a longer one, and shorter ones on the other workers
                runs = [(start, size >> step) for step in range(self._width) if size >> step]
            else:  # it was not: try single items, one for each worker
                runs = [(place, 1) for place in range(start, min(start + self._width, len(rest)))]
            without = [rest[:place] + rest[place + length :] for place, length in runs]
            found = self.first([[*needed, *part] for part in without])
            if found is not None:
                (start, length), rest = runs[found], without[found]
                size = 2 * length
            elif runs[-1][1] > 1:
                size = runs[-1][1] // 2
            else:
                start, size = runs[-1][0] + 1, 1
        return rest

    def one_by_one(self, kept: list[int]) -> list[int]:
        """Return the items that are left when no single one can be removed."""
        place = passed = 0
        while passed < len(kept):
            places = [(place + step) % len(kept) for step in range(min(self._width, len(kept) - passed))]
            found = self.first([kept[:at] + kept[at + 1 :] for at in places])
            if found is None:
                place, passed = place + len(places), passed + len(places)
            else:
                del kept[places[found]]
                place, passed = places[found], 0
        return kept


def _needs_many(needed: int, seen: int, rest: int) -> bool:
    """Return whether bisection is slower: an item takes log2(rest) queries, a run twice its log2."""
    if needed and needed + rest <= _NOT_MANY:
        return True
    return needed >= _FEW and (seen / needed) ** 2 <= rest


TOGETHER = 3
"""Maximum number of switches in an answer; if more are needed, none is named."""


def narrow(
    switches: Sequence[Item],
    goes_away: Callable[[Sequence[Item]], bool],
    *,
    weight: Callable[[Item], float] = lambda switch: 1.0,
) -> list[Item]:
    """Return the fewest switches that make the failure go away; none if too many are needed.

    All of them together are known to. The queries are about prefixes, so that the first in the order is
    returned if several would do. `weight` is how likely one is to be the culprit: one culprit among n costs
    log2(n) queries and one to verify it, fewer if it is likely; each further switch costs as much again.
    """
    needed: list[Item] = []
    rest = list(switches)
    while rest and len(needed) < TOGETHER:
        reached = [0.0, *accumulate(map(weight, rest))]

        def enough(lengths: Sequence[int], rest: list[Item] = rest) -> int | None:
            return 0 if goes_away([*needed, *rest[: lengths[0]]]) else None

        def halving(low: int, high: int, reached: list[float] = reached) -> list[int]:
            """Return the place between two others that is closest to halving the weight between them."""
            half = (reached[low] + reached[high]) / 2
            return [min(range(low + 1, high), key=lambda place: abs(reached[place] - half))]

        rest = rest[: smallest_failing(len(rest), enough, halving)]
        needed.append(rest.pop())
        if not rest or goes_away(needed):
            return needed
    return []


def smallest_failing(
    high: int,
    first_failing: Callable[[Sequence[int]], int | None],
    cuts: Callable[[int, int], Sequence[int]] = lambda low, high: [(low + high) // 2],
    *,
    low: int = 0,
) -> int:
    """Return the smallest number that fails: bisect between `low`, which passes, and `high`, which fails.

    `cuts(low, high)` chooses one or more numbers in between, in ascending order, to query together;
    `first_failing(numbers)` returns the index of the first that fails, None if none does.
    """
    while high - low > 1:
        asked = cuts(low, high)
        found = first_failing(asked)
        if found is None:
            low = asked[-1]
        else:
            low, high = asked[found - 1] if found else low, asked[found]
    return high
