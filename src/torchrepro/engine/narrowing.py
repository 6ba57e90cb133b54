"""Narrow down which of many switches makes the failure go away, in few questions.

The questions are about prefixes, so that the first in the order wins where several would do: whoever makes
the list puts the more telling one first. One guilty switch among n costs log2(n) questions and one that
verifies it, fewer for one that is suspected more than others; where several are needed together, as much
again for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeVar

_T = TypeVar("_T")

TOGETHER = 3
"""Switches at most that an answer may need; with more nobody is named."""


def narrow(
    switches: Sequence[_T],
    goes_away: Callable[[Sequence[_T]], bool],
    *,
    weight: Callable[[_T], float] = lambda switch: 1.0,
    at_most: int = TOGETHER,
) -> list[_T]:
    """The fewest switches that are seen to make the failure go away; none where too many would be needed.

    It must be known that all of them together do. `weight` is how likely one is to be the guilty one.
    """
    needed: list[_T] = []
    rest = list(switches)
    while rest and len(needed) < at_most:
        rest = _shortest_prefix(needed, rest, goes_away, weight)
        needed.append(rest.pop())
        if not rest or goes_away(needed):
            return needed
    return []


def _shortest_prefix(
    needed: Sequence[_T],
    switches: list[_T],
    goes_away: Callable[[Sequence[_T]], bool],
    weight: Callable[[_T], float],
) -> list[_T]:
    """The shortest beginning that is enough together with what is needed; all is, nothing is not."""
    reached = [0.0, *accumulate(map(weight, switches))]
    too_short, enough = 0, len(switches)
    while enough - too_short > 1:
        middle = _in_the_middle(reached, too_short, enough)
        if goes_away([*needed, *switches[:middle]]):
            enough = middle
        else:
            too_short = middle
    return switches[:enough]


def _in_the_middle(reached: Sequence[float], low: int, high: int) -> int:
    """The place strictly between two others that comes nearest to halving the weight between them."""
    half = (reached[low] + reached[high]) / 2
    return min(range(low + 1, high), key=lambda place: abs(reached[place] - half))
