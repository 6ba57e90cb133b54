"""Numbers to try, the simplest rule about numbers that agrees with all trials, and its words.

Each candidate for a rule is checked against all trials, so it may be wrong only about numbers that were not
tried.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from torchrepro.nouns.limits import Limits, Range

_MULTIPLES = (2, 4, 8, 16, 32, 64)
_LISTED, _FEW_LISTED = 8, 3
_CLOSE = 0.01
"""A limit that is known to 1 % is not refined further."""
# The most informative come first: not all are tried where each costs a compilation.
_FLOATS = (0.0, 1.0, -1.0, 1e4, -1e4, 0.5, -0.5, 1e-4, -1e-4, 2.0, -2.0, 10.0, -10.0, 100.0, -100.0)
_INTEGERS = (0, 1, -1, 100, -100, 2, 3, 7, 64, 127, 128, 255, -2, -3, 1000, 1 << 20)
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class Rule(NamedTuple):
    """Which numbers fail and which do not, as words that follow a noun: `any size` `>= 17`."""

    fails: str
    passes: str
    only: bool = False
    """A single number, so that "only" is said instead of "any"."""


def size_rule(failing: Collection[int], passing: Collection[int]) -> Rule | None:
    """Return the rule for sizes; None where no simple one holds."""
    if not failing or not passing:
        return None
    low, high = min(failing), max(failing)
    below, above = [size for size in passing if size < low], [size for size in passing if size > high]
    if len(below) + len(above) == len(passing):
        if below and above:
            only = Rule(f"{low}", "none of the others", only=True)
            return only if low == high else Rule(f"from {low} to {high}", "none below or above")
        if below:
            return _from(low, max(below))
        return Rule(f"<= {high}", "none above" if min(above) == high + 1 else f"none from {min(above)} up")
    rule = _multiples(failing, passing)
    combined = _multiples(failing, [size for size in passing if size > low])
    if rule is None and combined is not None and below:
        start = _from(low, max(below))
        return Rule(f"{start.fails} {combined.fails}", f"{start.passes}, {combined.passes}")
    return rule


def _from(low: int, before: int) -> Rule:
    return Rule(f">= {low}", "none below" if before == low - 1 else f"none up to {before}")


def _multiples(failing: Collection[int], passing: Collection[int]) -> Rule | None:
    """Return a rule on multiples of vector widths; one failing or passing size could match by chance."""
    step = _step(failing, passing)
    if step < 0:
        return Rule(f"that is not a multiple of {-step}", f"no multiple of {-step}")
    return Rule(f"that is a multiple of {step}", "no other") if step else None


def _step(failing: Collection[int], passing: Collection[int]) -> int:
    """Return of what all that fails, and nothing that passes, is a multiple; negative for the opposite."""
    if len(set(failing)) < 2 or len(set(passing)) < 2:
        return 0
    for step in _MULTIPLES:
        if all(size % step for size in failing) and not any(size % step for size in passing):
            return -step
        if not any(size % step for size in failing) and all(size % step for size in passing):
            return step
    return 0


def limits_of(failing: Collection[float], passing: Collection[float]) -> Limits | None:
    """Return the limits of what fails, as data; None where nothing passes, or nothing fails."""
    if not failing or not passing:
        return None
    finite, healthy = ([each for each in numbers if math.isfinite(each)] for numbers in (failing, passing))
    others = tuple(_labels([each for each in failing if not math.isfinite(each)]))
    if not finite:
        return Limits(others=others)
    ranges = _ranges(finite, healthy)
    if len(ranges) > 2 and all(isinstance(each, int) for each in (*finite, *healthy)):
        low = min(finite)
        step = _step([int(each) for each in finite], [int(each) for each in healthy if each > low])
        start = low if any(each < low for each in healthy) else None
        if step:
            return Limits(((start, None),), max(step, 0), max(-step, 0), others)
    return Limits(ranges, others=others)


def _ranges(failing: Collection[float], passing: Collection[float]) -> tuple[Range, ...]:
    """Return what is tried and fails without interruption; open where it is the last that was tried."""
    tried = sorted({*failing, *passing})
    found: list[Range] = []
    for place, number in enumerate(tried):
        if number not in failing:
            continue
        end = None if place + 1 == len(tried) else number
        if place and tried[place - 1] in failing:
            found[-1] = (found[-1][0], end)
        else:
            found.append((number if place else None, end))
    return tuple(found)


def value_rule(failing: Collection[float], passing: Collection[float]) -> Rule | None:
    """Return the rule for finite numbers; None where no simple one holds."""
    if not failing or not passing:
        return None
    if set(passing) == {0}:
        return Rule("other than 0", "0 does not")
    below, low, high, above = _around(failing, passing)
    if not any(low <= value <= high for value in passing):
        if below is None or above is None:
            return _one_sided(failing, passing)
        if low == high:
            return Rule(_written(low), "none of the others", only=True)
        return Rule(f"from {_limit(below, low)} to {_limit(above, high)}", "none outside")
    below, low, high, above = _around(passing, failing)
    if below is not None and above is not None and not any(low <= value <= high for value in failing):
        words = f"below {_limit(below, low)} or above {_limit(above, high)}"
        return Rule(words, "none from the one to the other")
    rule = _one_sided([abs(value) for value in failing], [abs(value) for value in passing])
    return None if rule is None else Rule(f"of a magnitude {rule.fails}", rule.passes)


def _around(
    inner: Collection[float], outer: Collection[float]
) -> tuple[float | None, float, float, float | None]:
    """Return the ends of the `inner` numbers, each with the nearest of the `outer` numbers beyond it."""
    low, high = min(inner), max(inner)
    below = max((value for value in outer if value < low), default=None)
    above = min((value for value in outer if value > high), default=None)
    return below, low, high, above


def _one_sided(failing: Collection[float], passing: Collection[float]) -> Rule | None:
    """Return the rule for one limit between the numbers that pass and those that fail; None if they mix."""
    if min(failing) > max(passing):
        passes, fails, side, other = max(passing), min(failing), "above", "below"
    elif max(failing) < min(passing):
        passes, fails, side, other = min(passing), max(failing), "below", "above"
    else:
        return None
    integers = isinstance(passes, int) and isinstance(fails, int) and abs(passes - fails) == 1
    limit = fails if integers else _simplest(min(passes, fails), max(passes, fails))
    text = _written(limit)
    if limit == fails:
        return Rule(f"at or {side} {text}", f"none {other}")
    return Rule(f"{side} {text}", f"none at or {other} {text}" if limit == passes else f"none {other}")


def _limit(outside: float, inside: float) -> str:
    """Return a short number for the end of a range: `outside` lies beyond it, `inside` within."""
    limit = _simplest(min(outside, inside), max(outside, inside))
    return _written(inside if limit == outside else limit)


def _written(number: float) -> str:
    """Return exactly this number, in the fewest digits."""
    return str(number) if isinstance(number, int) else repr(number).removesuffix(".0")


def _simplest(low: float, high: float) -> float:
    """Return the number of a closed interval with the fewest digits."""
    if low <= 0 <= high:
        return 0.0
    middle = math.copysign(math.sqrt(abs(low)) * math.sqrt(abs(high)), low)
    for digits in range(1, 17):
        scale = 10.0 ** (math.floor(math.log10(abs(middle))) - digits + 1)
        for step in (0, -1, 1):
            number = float(f"{(round(middle / scale) + step) * scale:.{digits}g}") if scale else middle
            if low <= number <= high:
                return number
    return high


# Which numbers to try.


def changes(failing: Collection[float], passing: Collection[float]) -> list[tuple[float, float]]:
    """Return neighbours among the numbers tried, one failing and one passing: a limit lies between them."""
    tried = sorted({*failing, *passing})
    return [(a, b) for a, b in pairwise(tried) if (a in failing) != (b in failing)]


def sizes_between(low: int, high: int, count: int) -> list[int]:
    """Return at most `count` sizes that divide an open interval evenly; all if there are no more."""
    between = range(low + 1, high)
    if len(between) <= count:
        return list(between)
    return sorted({low + (high - low) * step // (count + 1) for step in range(1, count + 1)} - {low})


def between(low: float, high: float, count: int, dtype: torch.dtype) -> Sequence[float]:
    """Return at most `count` numbers of a dtype between two; none where the two are close enough.

    Floats are spaced evenly by their place among all floats of the dtype.
    """
    if not dtype.is_floating_point:
        step = max(1, int(high - low) // (count + 1))
        return list(range(int(low) + step, int(high), step))[:count]
    if high - low <= max(_CLOSE * min(abs(low), abs(high)), torch.finfo(dtype).tiny):
        return []
    bits = _BITS[dtype.itemsize]
    first, last = (_ordinal(end, dtype, bits) for end in (low, high))
    places = sorted({first + (last - first) * step // (count + 1) for step in range(1, count + 1)})
    found = [math.copysign(torch.tensor(abs(p), dtype=bits).view(dtype).item(), p) for p in places]
    return [number for number in found if low < number < high]


def _ordinal(value: float, dtype: torch.dtype, bits: torch.dtype) -> int:
    """Return the place of a float among all floats of its dtype."""
    found = int(torch.tensor(value, dtype=dtype).view(bits).item())
    return found if found >= 0 else -(found + (1 << (8 * bits.itemsize - 1)))


def numbers_to_try(dtype: torch.dtype) -> list[float]:
    """Return numbers of both signs: zero, small, large, the largest, subnormal, infinite, NaN."""
    return list({repr(number): number for number in _numbers(dtype)}.values())


def _numbers(dtype: torch.dtype) -> Iterator[float]:
    if dtype is torch.bool:
        yield from (0, 1)
    elif dtype.is_floating_point:
        info = torch.finfo(dtype)
        yield from (number for number in _FLOATS if abs(number) < info.max)
        for number in (info.max, info.max**0.75, info.max**0.4, info.tiny, info.tiny * info.eps):
            stored = float(torch.tensor(number, dtype=torch.float64).to(dtype).item())
            yield from (stored, -stored)
        yield from (math.inf, -math.inf, math.nan)
    else:
        limits = torch.iinfo(dtype)
        wanted = (*_INTEGERS, limits.max, limits.min)
        yield from (number for number in wanted if limits.min <= number <= limits.max)


# Sentences: each states what was tried, and nothing beyond it.


def label_of(number: float) -> str:
    """Return a number as text: `1`, `-0.5`, `3.4e+38`, `nan`, `True`."""
    return str(number) if isinstance(number, int) else f"{number:g}"


def listed(labels: Sequence[str], *, joined: str = "and", most: int = _LISTED) -> str:
    """Return `a`, `a and b` or `a, b and c`; of more than `most`, the first and `and 3 more`."""
    if len(labels) > most:
        return f"{', '.join(labels[:most])} {joined} {len(labels) - most} more"
    *others, last = labels
    return f"{', '.join(others)} {joined} {last}" if others else last


def _both_listed(failing: Sequence[str], passing: Sequence[str]) -> tuple[str, str]:
    """Return both lists so short that a line has room for both."""
    most = _LISTED if len(failing) + len(passing) <= _LISTED else _FEW_LISTED
    return listed(failing, most=most), listed(passing, most=most)


def sentence_on_sizes(failing: Sequence[int], passing: Sequence[int], where: str) -> str:
    """Return the sentence on sizes; `where` is `in dim 1 of x`."""
    counts = len(set(failing)), len(set(passing))
    if not passing:
        return f"any size from {min(failing)} to {max(failing)} {where} fails ({counts[0]} tried)"
    rule = size_rule(failing, passing)
    if rule is None:
        fails, passes = _both_listed(*([str(size) for size in sorted(set(s))] for s in (failing, passing)))
        return f"of the sizes {where} {fails} fail, {passes} pass"
    if rule.only:
        return f"only size {rule.fails} {where} fails, {rule.passes} ({counts[1]} tried)"
    reach = f", up to {max(failing)}" if rule.fails.startswith(">=") else ""
    words = f"any size {rule.fails}"
    return f"{words} {where} fails ({counts[0]} tried{reach}), {rule.passes} ({counts[1]} tried)"


def sentence_on_values(failing: Sequence[float], passing: Sequence[float], noun: str) -> str:
    """Return the sentence on values; `noun` is `value of x`. Infinities and NaN are named separately."""
    finite = [v for v in failing if math.isfinite(v)], [v for v in passing if math.isfinite(v)]
    counts = len(set(finite[0])), len(set(finite[1]))
    if not finite[0]:
        fails = f"only {listed(_labels(failing))} as {noun} fails"
        return f"{fails}, no other ({len(set(passing))} tried)" if passing else fails
    more = _not_finite(failing, passing)
    if not finite[1]:
        kind = "" if len(finite[1]) == len(passing) else "finite "
        return f"any {kind}{noun} fails ({counts[0]} tried){more}"
    rule = value_rule(*finite)
    if rule is None:
        fails, passes = _both_listed(*map(_labels, finite))
        return f"as {noun} {fails} fail, {passes} pass{more}"
    if rule.only:
        return f"only {rule.fails} as {noun} fails, {rule.passes} ({counts[1]} tried){more}"
    tried = f" ({counts[1]} tried)" if rule.passes.startswith("no") else ""
    return f"any {noun} {rule.fails} fails ({counts[0]} tried), {rule.passes}{tried}{more}"


def _not_finite(failing: Sequence[float], passing: Sequence[float]) -> str:
    """Return the part of a sentence about infinities and NaN; empty if none was tried."""
    fails = [value for value in failing if not math.isfinite(value)]
    passes = [value for value in passing if not math.isfinite(value)]
    words = f", {listed(_labels(fails))} too" if fails else ""
    return words + (f", not {listed(_labels(passes), joined='or')}" if passes else "")


def _labels(values: Sequence[float]) -> list[str]:
    return list(dict.fromkeys(f"{value:g}" for value in values))
