"""Numbers to try, and the simplest rule about numbers that agrees with everything that was tried.

A rule is read off the trials, never the other way round: each candidate is checked against all of them, so it
may be wrong only about numbers that were not tried.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

_MULTIPLES = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Rule:
    """Which numbers fail and which do not, as words that follow a noun: `any size` `>= 17`."""

    fails: str
    passes: str
    only: bool = False
    """A single number, so that "only" is said instead of "any"."""


def size_rule(failing: Collection[int], passing: Collection[int]) -> Rule | None:
    """The rule for integers that count something; None where no simple one holds."""
    if not failing or not passing:
        return None
    for rule in (_one_size(failing, passing), _threshold(failing, passing), _multiples(failing, passing)):
        if rule is not None:
            return rule
    above = [size for size in passing if size > min(failing)]
    combined = _multiples(failing, above)
    if combined is not None and len(above) > 1:
        start = _from(failing, [size for size in passing if size < min(failing)])
        return Rule(f"{start.fails} {combined.fails}", f"{start.passes}, {combined.passes}")
    return None


def value_rule(failing: Collection[float], passing: Collection[float]) -> Rule | None:
    """The rule for finite numbers; None where no simple one holds."""
    if not failing or not passing:
        return None
    low, high = min(failing), max(failing)
    if set(passing) == {0}:
        return Rule("other than 0", "0 does not")
    if not any(low <= value <= high for value in passing):
        below = max((value for value in passing if value < low), default=None)
        above = min((value for value in passing if value > high), default=None)
        if low == high and below is not None and above is not None:
            return Rule(_written(low), "none of the others", only=True)
        if below is not None and above is not None:
            limits = _limit(below, low), _limit(above, high)
            return Rule(f"from {_written(limits[0])} to {_written(limits[1])}", "none outside")
        if below is not None:
            return _above(below, low, "above", "below")
        if above is not None:
            return _above(above, high, "below", "above")
    inner = min(passing), max(passing)
    if not any(inner[0] <= value <= inner[1] for value in failing):
        below, above = max(v for v in failing if v < inner[0]), min(v for v in failing if v > inner[1])
        limits = _limit(below, inner[0]), _limit(above, inner[1])
        words = f"below {_written(limits[0])} or above {_written(limits[1])}"
        return Rule(words, "none from the one to the other")
    sizes = [abs(value) for value in failing], [abs(value) for value in passing]
    if min(sizes[0]) > max(sizes[1]):
        return _of_magnitude(_above(max(sizes[1]), min(sizes[0]), "above", "below"))
    if max(sizes[0]) < min(sizes[1]):
        return _of_magnitude(_above(min(sizes[1]), max(sizes[0]), "below", "above"))
    return None


def changes(failing: Collection[float], passing: Collection[float]) -> list[tuple[float, float]]:
    """Neighbours among the numbers tried, of which one fails and one passes: between them lies a limit."""
    tried = sorted({*failing, *passing})
    return [(a, b) for a, b in pairwise(tried) if (a in failing) != (b in failing)]


def sizes_between(low: int, high: int, count: int) -> list[int]:
    """At most `count` sizes that divide an open interval evenly; all of them where there are no more."""
    between = range(low + 1, high)
    if len(between) <= count:
        return list(between)
    return sorted({low + (high - low) * step // (count + 1) for step in range(1, count + 1)} - {low})


def values_between(low: float, high: float, count: int, *, double: bool = False) -> list[float]:
    """At most `count` floating numbers that divide an open interval, with as many numbers between any two."""
    first, last = _ordinal(low, double), _ordinal(high, double)
    places = {first + (last - first) * step // (count + 1) for step in range(1, count + 1)}
    return [_from_ordinal(place, double) for place in sorted(places - {first, last})]


def _one_size(failing: Collection[int], passing: Collection[int]) -> Rule | None:
    (size, *others) = sorted(set(failing))
    if others or not any(other < size for other in passing) or not any(other > size for other in passing):
        return None
    return Rule(f"{size}", "none of the others", only=True)


def _threshold(failing: Collection[int], passing: Collection[int]) -> Rule | None:
    low, high = min(failing), max(failing)
    below = [size for size in passing if size < low]
    above = [size for size in passing if size > high]
    if len(below) + len(above) < len(set(passing)):
        return None
    if below and above:
        return Rule(f"from {low} to {high}", "none below or above")
    if below:
        return _from(failing, below)
    after = min(above)
    return Rule(f"<= {high}", "none above" if after == high + 1 else f"none from {after} up")


def _from(failing: Collection[int], below: Sequence[int]) -> Rule:
    low = min(failing)
    if not below:
        return Rule("", "none")
    before = max(below)
    return Rule(f">= {low}", "none below" if before == low - 1 else f"none up to {before}")


def _multiples(failing: Collection[int], passing: Collection[int]) -> Rule | None:
    """Vector widths. Two of each kind at least: one alone is a multiple of something by chance."""
    if len(set(failing)) < 2 or len(set(passing)) < 2:
        return None
    for step in _MULTIPLES:
        if all(size % step for size in failing) and not any(size % step for size in passing):
            return Rule(f"that is not a multiple of {step}", f"no multiple of {step}")
        if not any(size % step for size in failing) and all(size % step for size in passing):
            return Rule(f"that is a multiple of {step}", "no other")
    return None


def _above(passes: float, fails: float, side: str, other: str) -> Rule:
    """The rule for a limit between a number that passes and one that fails, which lies on `side` of it."""
    integers = isinstance(passes, int) and isinstance(fails, int) and abs(passes - fails) == 1
    limit = fails if integers else _simplest(min(passes, fails), max(passes, fails))
    text = _written(limit)
    if limit == fails:
        return Rule(f"at or {side} {text}", f"none {other}")
    if limit == passes:
        return Rule(f"{side} {text}", f"none at or {other} {text}")
    return Rule(f"{side} {text}", f"none {other}")


def _of_magnitude(rule: Rule) -> Rule:
    return Rule(f"of a magnitude {rule.fails}", rule.passes)


def _limit(outside: float, inside: float) -> float:
    """A short number for the end of a range: beyond it `outside`, within it `inside`."""
    limit = _simplest(min(outside, inside), max(outside, inside))
    return inside if limit == outside else limit


def _written(number: float) -> str:
    """Exactly this number, in as few digits as that takes."""
    return str(number) if isinstance(number, int) else repr(number).removesuffix(".0")


def _simplest(low: float, high: float) -> float:
    """A number from a closed interval that takes the fewest digits to write."""
    if low <= 0 <= high:
        return 0.0
    middle = math.copysign(math.sqrt(abs(low)) * math.sqrt(abs(high)), low)
    for digits in range(1, 17):
        for number in _rounded(middle, digits):
            if low <= number <= high:
                return number
    return high


def _rounded(number: float, digits: int) -> Iterator[float]:
    """The number with so many digits, and its neighbours with as many."""
    scale = 10.0 ** (math.floor(math.log10(abs(number))) - digits + 1)
    for step in (0, -1, 1):
        yield float(f"{(round(number / scale) + step) * scale:.{digits}g}") if scale else number


def _ordinal(value: float, double: bool) -> int:
    """The place of a float among all floats."""
    bits: int = struct.unpack("<q" if double else "<i", struct.pack("<d" if double else "<f", value))[0]
    sign = 1 << 63 if double else 1 << 31
    return bits if bits >= 0 else -(bits + sign)


def _from_ordinal(place: int, double: bool) -> float:
    value: float = struct.unpack("<d" if double else "<f", struct.pack("<q" if double else "<i", abs(place)))[
        0
    ]
    return math.copysign(value, place)


# Numbers of a dtype: which to try, how they are stored and written, and what lies between two of them.

_CLOSE = 0.01
"""A limit that is known to one per cent is not refined further."""

# What tells most comes first: not all may be asked where each is a compilation of its own.
_FLOATS = (0.0, 1.0, -1.0, 1e4, -1e4, 0.5, -0.5, 1e-4, -1e-4, 2.0, -2.0, 10.0, -10.0, 100.0, -100.0)
_INTEGERS = (0, 1, -1, 100, -100, 2, 3, 7, 64, 127, 128, 255, -2, -3, 1000, 1 << 20)


def numbers_to_try(dtype: torch.dtype) -> list[float]:
    """Signs, sizes and extremes: zero, small, large, the largest, subnormal, infinite, NaN."""
    return list({repr(number): number for number in _numbers(dtype)}.values())


def _numbers(dtype: torch.dtype) -> Iterator[float]:
    if dtype is torch.bool:
        yield from (0, 1)
    elif dtype.is_floating_point:
        info = torch.finfo(dtype)
        yield from (number for number in _FLOATS if abs(number) < info.max)
        subnormal = info.tiny * info.eps
        for number in (info.max, info.max**0.75, info.max**0.4, info.tiny, subnormal):
            yield from (as_stored(number, dtype), as_stored(-number, dtype))
        yield from (math.inf, -math.inf, math.nan)
    else:
        limits = torch.iinfo(dtype)
        wanted = (*_INTEGERS, limits.max, limits.min)
        yield from (number for number in wanted if limits.min <= number <= limits.max)


def between(low: float, high: float, count: int, dtype: torch.dtype) -> Sequence[float]:
    """At most `count` numbers of a dtype between two; none where the two are as close as anybody asks."""
    if not dtype.is_floating_point:
        step = max(1, int(high - low) // (count + 1))
        return list(range(int(low) + step, int(high), step))[:count]
    if high - low <= max(_CLOSE * min(abs(low), abs(high)), torch.finfo(dtype).tiny):
        return []
    found = values_between(low, high, count, double=dtype is torch.float64)
    stored = dict.fromkeys(as_stored(number, dtype) for number in found)
    return [number for number in stored if low < number < high]


def as_stored(number: float, dtype: torch.dtype) -> float:
    """What a tensor of this dtype makes of a floating number."""
    return float(torch.tensor(number, dtype=torch.float64).to(dtype).item())


def label_of(number: float) -> str:
    """`1`, `-0.5`, `3.4e+38`, `nan`."""
    return str(number) if isinstance(number, int) else f"{number:g}"


def place_of(number: float) -> tuple[bool, float]:
    """To sort by: numbers in their order, NaN after all of them."""
    return (True, 0.0) if number != number else (False, number)
