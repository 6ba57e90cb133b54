"""The fewest of many items that still fail: 1-minimal, in few questions, several questions at a time.

Most failures need one or two of a thousand items. So nothing is tried first, then the items that are needed
are found one by one, each by bisection: of growing prefixes, the first that fails ends with an item that is
needed. That takes log2(n) questions an item, where halving and complementing take a few times that. A failure
that needs many items (an error that accumulates) would make bisection the slow way; there items are taken out
from one end to the other, more at a time as long as that goes well, which is one question for each that is
needed. At the end each one is taken out by itself: no failure is trusted to need more only for having more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import accumulate
from typing import TypeVar

Item = TypeVar("Item")
FailsFirst = Callable[[Sequence[Sequence[Item]]], int | None]
"""Of several subsets, in the order given, the index of the first that fails; None if none does."""

Nearest = Callable[[Sequence[Item], Sequence[Item]], Sequence[Item]]
"""(needed, rest) -> the rest in the order of its nearness to what is needed."""

_Parts = Sequence[Sequence[int]]
_Order = Callable[[list[int], list[int]], list[int]]

_FEW = 6
"""Items found one by one before the failure counts as one that needs many."""
_NOT_MANY = 8
"""Where one is not enough, no more items than these are as quickly taken out one after the other."""
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
    """A 1-minimal part of items that fails. All of them together are taken to fail.

    What is needed in addition to an item is often near it: a few of the `nearest` items come first.
    `suspected` are items that are likely to be needed: the search begins with them.
    """
    items = list(items)
    answers = _Answers(lambda parts: fails_first([[items[index] for index in part] for part in parts]))
    if not items or answers.first([[]]) is not None:
        return []
    start = [index for index, item in enumerate(items) if item in suspected]
    needed, rest = _needed_ones(len(items), answers, width, _order(items, nearest), start)
    rest = _without_runs(needed, rest, answers, width)
    kept = _one_by_one(sorted([*needed, *rest]), answers, width)
    return [items[index] for index in kept]


class _Answers:
    """Asks what is not known yet; a subset is a set of indices, whatever their order."""

    def __init__(self, ask: Callable[[_Parts], int | None]) -> None:
        self._ask = ask
        self._known: dict[frozenset[int], bool] = {}

    def first(self, parts: _Parts) -> int | None:
        """The index of the first part that fails."""
        sets = [frozenset(part) for part in parts]
        known = next((index for index, part in enumerate(sets) if self._known.get(part)), None)
        asked = [index for index, part in enumerate(sets[:known]) if part not in self._known]
        if not asked:
            return known
        found = self._ask([sorted(sets[index]) for index in asked])
        for place in range(len(asked) if found is None else found):
            self._known[sets[asked[place]]] = False
        if found is None:
            return known
        self._known[sets[asked[found]]] = True
        return asked[found]


def _order(items: Sequence[Item], nearest: Nearest[Item] | None) -> _Order | None:
    if nearest is None:
        return None

    def order(needed: list[int], rest: list[int]) -> list[int]:
        near = nearest([items[index] for index in needed], [items[index] for index in rest])
        ranks = {id(item): rank for rank, item in enumerate(near)}
        return sorted(rest, key=lambda index: ranks.get(id(items[index]), len(ranks)))

    return order


def _needed_ones(
    count: int, answers: _Answers, width: int, order: _Order | None, start: list[int]
) -> tuple[list[int], list[int]]:
    """Items that are needed, found by bisection, and those that may still be."""
    needed = list(start)
    rest = [index for index in range(count) if index not in start]
    if needed and (not rest or answers.first([needed]) is not None):
        return needed, []
    while not _needs_many(len(needed), count - len(rest), len(rest)):
        # Invariant: `needed` with all of `rest` fails; `needed` alone does not.
        ordered = bool(needed) and order is not None
        if needed and order is not None:
            rest = order(needed, rest)
        shortest = smallest_failing(
            len(rest),
            partial(_first_prefix, answers, needed, rest),
            partial(_cuts, width=width, near_until=len(rest) if ordered else 0),
        )
        needed.append(rest[shortest - 1])
        rest = rest[: shortest - 1]
        if not rest or answers.first([needed]) is not None:
            return needed, []
    return needed, sorted(rest)


def _needs_many(needed: int, seen: int, rest: int) -> bool:
    """Whether bisection is the slower way: a needed item takes log2(rest) questions, a run twice its log2."""
    if needed and needed + rest <= _NOT_MANY:
        return True
    return needed >= _FEW and (seen / needed) ** 2 <= rest


def _first_prefix(
    answers: _Answers, needed: list[int], rest: list[int], lengths: Sequence[int]
) -> int | None:
    return answers.first([[*needed, *rest[:length]] for length in lengths])


def _cuts(low: int, high: int, *, width: int, near_until: int) -> list[int]:
    """Where to cut between a prefix that passes and one that fails: one place for each worker.

    As long as no prefix but the whole (`near_until`) is known to fail, a few of the nearest items come first.
    """
    near = [cut for cut in _NEAR if low < cut < high] if high == near_until else []
    places = {low + (high - low) * (step + 1) // (width + 1) for step in range(width)}
    return near[:width] or sorted(place for place in places if low < place < high) or [low + 1]


def _without_runs(needed: list[int], rest: list[int], answers: _Answers, width: int) -> list[int]:
    """What is left of the rest once every run that can go has gone, from one end to the other."""
    start, size = 0, 1
    while start < len(rest):
        if size > 1:  # the last run went: a longer one next, and shorter ones for the other workers
            runs = [(start, size >> step) for step in range(width) if size >> step]
        else:  # it did not: single items, one for each worker
            runs = [(place, 1) for place in range(start, min(start + width, len(rest)))]
        without = [rest[:place] + rest[place + length :] for place, length in runs]
        found = answers.first([[*needed, *part] for part in without])
        if found is not None:
            (start, length), rest = runs[found], without[found]
            size = 2 * length
        elif runs[-1][1] > 1:
            size = runs[-1][1] // 2
        else:
            start, size = runs[-1][0] + 1, 1
    return rest


def _one_by_one(kept: list[int], answers: _Answers, width: int) -> list[int]:
    """Until no single item can go."""
    place = passed = 0
    while passed < len(kept):
        places = [(place + step) % len(kept) for step in range(min(width, len(kept) - passed))]
        found = answers.first([kept[:at] + kept[at + 1 :] for at in places])
        if found is None:
            place, passed = place + len(places), passed + len(places)
        else:
            del kept[places[found]]
            place, passed = places[found], 0
    return kept


TOGETHER = 3
"""Switches at most that an answer may need; with more none is named."""


def narrow(
    switches: Sequence[Item],
    goes_away: Callable[[Sequence[Item]], bool],
    *,
    weight: Callable[[Item], float] = lambda switch: 1.0,
    at_most: int = TOGETHER,
) -> list[Item]:
    """Return the fewest switches that are seen to make the failure go away; none where too many are needed.

    All of them together are known to. The questions are about prefixes, so that the first in the order wins
    where several would do. `weight` is how likely one is to be the culprit: one culprit among n costs log2(n)
    questions and one that verifies it, fewer for a likely one; as much again for each that is needed as well.
    """
    needed: list[Item] = []
    rest = list(switches)
    while rest and len(needed) < at_most:
        reached = [0.0, *accumulate(map(weight, rest))]

        def enough(lengths: Sequence[int], rest: list[Item] = rest) -> int | None:
            return 0 if goes_away([*needed, *rest[: lengths[0]]]) else None

        def halving(low: int, high: int, reached: list[float] = reached) -> list[int]:
            """The place between two others that comes nearest to halving the weight between them."""
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

    `cuts(low, high)` chooses one or more numbers in between, in ascending order, to ask about together;
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
