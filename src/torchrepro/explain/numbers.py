"""Numbers of a dtype: which to try, how they are stored and written, and what lies between two of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from torchrepro.explain.rules import values_between

_CLOSE = 0.01
"""Where a limit is known to one per cent, nobody asks for more."""

# What tells most comes first: not all may be asked where each is a compilation of its own.
_FLOATS = (0.0, 1.0, -1.0, 1e4, -1e4, 0.5, -0.5, 1e-4, -1e-4, 2.0, -2.0, 10.0, -10.0, 100.0, -100.0)
_WHOLE = (0, 1, -1, 100, -100, 2, 3, 7, 64, 127, 128, 255, -2, -3, 1000, 1 << 20)


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
        wanted = (*_WHOLE, limits.max, limits.min)
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
