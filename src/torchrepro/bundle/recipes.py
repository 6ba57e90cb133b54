"""Storages too large to keep: an exact short form where there is one, else random values like the data.

Integers and booleans are indices, masks and shapes: a wrong one changes what is computed, so they have only
exact forms. A recipe gives the same bits on every machine: NumPy guarantees the raw stream of Philox but not
the methods of `Generator` (NEP 19), and libm's `log` and `cos` differ between platforms; so a value is a raw
draw looked up in the recipe's table of quantiles by arithmetic that IEEE 754 fixes to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from statistics import NormalDist
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from torchrepro.bundle.storage_entries import (
    Constant,
    Narrowed,
    Progression,
    RandomFloats,
    RandomIntegers,
    Recipe,
)
from torchrepro.nouns.errors import damaged

_CHUNK = 1 << 22
"""Elements handled at a time, so that a storage needs no temporary of its own size."""
_SAMPLE = 1 << 20
"""Elements looked at for the quantiles; counts, mean, std and extremes use all of them."""
_FEW_VALUES = 256
"""Up to here every value has its own share: interpolated, an 8-bit dtype was 10% off in std."""
_INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TAIL = [2e-6, 1e-5, 1e-4, 1e-3, 5e-3, 0.0125]
_LEVELS = [*_TAIL, *(step / 40 for step in range(1, 40)), *(1 - level for level in reversed(_TAIL))]


def can_resemble(dtype: torch.dtype) -> bool:
    """Return whether torch converts values of this dtype to float64 and back (not float4)."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return False
    try:
        torch.zeros(1, dtype=torch.float64).to(dtype.to_real()).to(torch.float64)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def exact_recipe(flat: torch.Tensor, dtype: torch.dtype) -> tuple[Recipe, torch.Tensor | None] | None:
    """Return a short exact form of these bytes seen as `dtype`, and what of it must be stored; else None."""
    itemsize = dtype.itemsize
    if flat.numel() == 0 or flat.numel() % itemsize:
        return None
    element = flat[:itemsize]
    if all(bool((piece == element).all()) for piece in flat.view(-1, itemsize).split(_CHUNK)):
        return Constant(element.cpu().numpy().tobytes()), None
    if dtype.is_floating_point or dtype.is_complex or itemsize not in _INTEGER:
        return None
    integers = flat.view(_INTEGER[itemsize])
    start, step = int(integers[0]), int(integers[1]) - int(integers[0])
    if all(torch.equal(piece, wanted) for piece, wanted in _with_progression(integers, start, step)):
        return Progression(itemsize, start, step), None
    low, high = int(integers.min()), int(integers.max())
    for bits in (1, 8, 16, 32):
        if high - low < 1 << bits and bits < 8 * itemsize:
            return Narrowed(itemsize, cast(Any, bits), low), _narrow(integers, low, bits)
    return None


def _narrow(integers: torch.Tensor, low: int, bits: int) -> torch.Tensor:
    if bits == 1:
        return torch.from_numpy(np.packbits((integers != low).numpy(), bitorder="little"))
    narrowed = np.empty(integers.numel(), dtype=f"<u{bits // 8}")
    for start, piece in _chunks(integers):
        narrowed[start : start + piece.numel()] = piece.to(torch.int64, copy=True).numpy() - low
    return torch.from_numpy(narrowed.view(np.uint8))


def random_recipe(flat: torch.Tensor, dtype: torch.dtype, seed: int) -> RandomFloats:
    """Describe floating values so that values like them can be drawn again."""
    component = dtype.to_real()
    values = flat.view(component)
    specials = [0, 0, 0]
    lowest, highest = (np.inf, -1), (-np.inf, -1)
    planted: set[int] = set()
    zeros, finite, total, squares = 0, 0, 0.0, 0.0
    for start, piece in _chunks(values):
        seen = _statistics(piece.to(torch.float64))
        for number, (count, place) in enumerate(seen.specials):
            if count and not specials[number]:
                planted.add(start + place)
            specials[number] += count
        if seen.finite:
            lowest = min(lowest, (seen.lowest[0], start + seen.lowest[1]), key=itemgetter(0))
            highest = max(highest, (seen.highest[0], start + seen.highest[1]), key=itemgetter(0))
        finite, zeros = finite + seen.finite, zeros + seen.zeros
        total, squares = total + seen.total, squares + seen.squares
    planted |= {place for _, place in (lowest, highest) if place >= 0}
    mean = total / finite if finite else 0.0
    std = float(np.sqrt(max(squares / finite - mean * mean, 0.0))) if finite else 0.0
    # An odd step: a power of two would sample a single column of most matrices.
    sample = values[:: max(1, values.numel() // _SAMPLE) | 1].to(torch.float64, copy=True).cpu().numpy()
    levels, quantiles = _table(sample[np.isfinite(sample) & (sample != 0)])
    return RandomFloats(
        dtype=str(component).removeprefix("torch."),
        resembles="other",
        mean=float(np.nan_to_num(mean)),  # near the largest float64 it overflows, and JSON has no infinity
        std=float(np.nan_to_num(std)),
        minimum=lowest[0] if finite else 0.0,
        maximum=highest[0] if finite else 0.0,
        zeros=zeros / max(values.numel(), 1),
        nans=specials[0],
        infinities=specials[1],
        negative_infinities=specials[2],
        levels=levels,
        quantiles=quantiles,
        planted=[
            (place, values[place : place + 1].view(torch.uint8).cpu().numpy().tobytes())
            for place in sorted(planted)
        ],
        seed=seed,
    )


class _Statistics(NamedTuple):
    """What some float64 numbers are like; those that are not finite count among `specials` alone."""

    finite: int
    zeros: int
    total: float
    squares: float
    lowest: tuple[float, int]
    """The number and its index."""
    highest: tuple[float, int]
    specials: tuple[tuple[int, int], ...]
    """How many are NaN, inf and -inf, and the index of one of each."""


def _statistics(numbers: torch.Tensor) -> _Statistics:
    """Return the statistics of numbers where they are, on any device; the device is waited for once."""
    finite = numbers.isfinite()
    kept = torch.where(finite, numbers, 0.0)
    lowest = torch.where(finite, numbers, torch.inf).min(0)
    highest = torch.where(finite, numbers, -torch.inf).max(0)
    masks = (numbers.isnan(), numbers == torch.inf, numbers == -torch.inf)
    found = [finite.sum(), (numbers == 0).sum(), kept.sum(), kept.square().sum()]
    found += [*lowest, *highest]
    for mask in masks:
        found += [mask.sum(), mask.to(torch.uint8).argmax()]
    told: list[float] = torch.stack([each.to(torch.float64) for each in found]).tolist()
    return _Statistics(
        int(told[0]),
        int(told[1]),
        told[2],
        told[3],
        (told[4], int(told[5])),
        (told[6], int(told[7])),
        tuple((int(count), int(place)) for count, place in zip(told[8::2], told[9::2], strict=True)),
    )


def _table(sample: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[list[float], list[float]]:
    """Return levels and the values at them: a curve, or a step for each value of a coarse dtype."""
    distinct, counts = np.unique(sample, return_counts=True)
    if not distinct.size:
        return _LEVELS, [0.0] * len(_LEVELS)
    if distinct.size > _FEW_VALUES:
        return _LEVELS, np.quantile(sample, _LEVELS).tolist()
    ends = np.cumsum(counts) / sample.size
    starts = np.nextafter(np.append(0.0, ends[:-1]), 1)
    return np.column_stack([starts, ends]).ravel().tolist(), np.repeat(distinct, 2).tolist()


def unknown_data(dtype: torch.dtype, seed: int) -> Recipe:
    """Describe a tensor that never had data: standard normal floats; zeros and ones for everything else.

    Ones as well as zeros, because a computation on zeros alone hides most failures; nothing larger, because
    an index of 1 exists in nearly every table.
    """
    if not can_resemble(dtype):
        return RandomIntegers(dtype.itemsize, 0, 2, seed)
    return RandomFloats(
        dtype=str(dtype.to_real()).removeprefix("torch."),
        resembles="unknown",
        mean=0.0,
        std=1.0,
        minimum=-5.0,
        maximum=5.0,
        zeros=0.0,
        nans=0,
        infinities=0,
        negative_infinities=0,
        levels=_LEVELS,
        quantiles=[NormalDist().inv_cdf(level) for level in _LEVELS],
        planted=[],
        seed=seed,
    )


def follow(recipe: Recipe, nbytes: int, load: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return the `nbytes` bytes that a recipe describes; `load` gives what the file holds of them."""
    if isinstance(recipe, Constant):
        _check(len(recipe.element) > 0 and nbytes % len(recipe.element) == 0, recipe)
        return torch.from_numpy(np.frombuffer(recipe.element, np.uint8).copy()).repeat(
            nbytes // len(recipe.element)
        )
    if isinstance(recipe, RandomFloats):
        dtype = getattr(torch, recipe.dtype, None)
        _check(isinstance(dtype, torch.dtype) and can_resemble(dtype), recipe)
    else:
        dtype = _INTEGER.get(recipe.itemsize)
        _check(dtype is not None, recipe)
    assert isinstance(dtype, torch.dtype)
    _check(nbytes % dtype.itemsize == 0, recipe)
    result = torch.empty(nbytes // dtype.itemsize, dtype=dtype, device="cpu")
    match recipe:
        case Progression(start=start, step=step):
            for piece, wanted in _with_progression(result, start, step):
                piece.copy_(wanted)
        case Narrowed():
            _widen(recipe, result, load())
        case RandomFloats():
            _draw_floats(recipe, result)
        case RandomIntegers(low=low, high=high):
            _check(low < high, recipe)
            for piece, raw in _with_draws(result, recipe.seed):
                piece.copy_(torch.from_numpy((raw % np.uint64(high - low)).astype(np.int64) + low))
    return result.view(torch.uint8)


def _check(condition: bool, recipe: Recipe) -> None:
    if not condition:
        raise damaged(f"a {type(recipe).__name__} recipe in the manifest does not fit its storage")


def _widen(recipe: Narrowed, result: torch.Tensor, stored: torch.Tensor) -> None:
    _check(stored.numel() == -(-result.numel() * recipe.bits // 8), recipe)
    raw = stored.numpy()
    narrowed = (
        np.unpackbits(raw, count=result.numel(), bitorder="little")
        if recipe.bits == 1
        else raw.view(f"<u{recipe.bits // 8}")
    )
    for start, piece in _chunks(result):
        numbers = narrowed[start : start + piece.numel()].astype(np.int64) + recipe.minimum
        piece.copy_(torch.from_numpy(numbers))


def _draw_floats(recipe: RandomFloats, result: torch.Tensor) -> None:
    levels, quantiles = np.array(recipe.levels), np.array(recipe.quantiles)
    widths = np.diff(levels)
    _check(levels.size == quantiles.size >= 2 and bool((widths > 0).all()), recipe)
    count = max(result.numel(), 1)
    specials = [
        (np.nan, recipe.nans / count),
        (np.inf, recipe.infinities / count),
        (-np.inf, recipe.negative_infinities / count),
        (0.0, recipe.zeros),
    ]
    taken = min(sum(share for _, share in specials), 1.0)
    for piece, raw in _with_draws(result, recipe.seed):
        unit = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
        # The lowest draws become the special values, the rest are stretched over the whole table.
        level = np.clip((unit - taken) / (1 - taken) if taken < 1 else unit, levels[0], levels[-1])
        step = np.clip(np.searchsorted(levels, level) - 1, 0, widths.size - 1)
        along = (level - levels[step]) / widths[step]
        # Weighting both ends, because their difference can overflow.
        numbers = quantiles[step] * (1 - along) + quantiles[step + 1] * along
        np.clip(numbers, recipe.minimum, recipe.maximum, out=numbers)
        edge = 0.0
        for value, share in specials:
            numbers[(unit >= edge) & (unit < edge + share)] = value
            edge += share
        piece.copy_(torch.from_numpy(numbers))
    rows = result.view(torch.uint8).view(-1, result.itemsize)
    for index, element in recipe.planted:
        _check(len(element) == result.itemsize and 0 <= index < result.numel(), recipe)
        rows[index] = torch.tensor(list(element), dtype=torch.uint8, device="cpu")


def _chunks(values: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield pieces of a row, each after the index of its first element."""
    for start in range(0, values.numel(), _CHUNK):
        yield start, values[start : start + _CHUNK]


def _with_draws(
    result: torch.Tensor, seed: int
) -> Iterator[tuple[torch.Tensor, np.ndarray[Any, np.dtype[np.uint64]]]]:
    philox = np.random.Philox(key=seed)
    for _, piece in _chunks(result):
        yield piece, cast("np.ndarray[Any, np.dtype[np.uint64]]", philox.random_raw(piece.numel()))


def _with_progression(
    integers: torch.Tensor, start: int, step: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    # As two's complement does: the step between two 64-bit integers may itself need 65 bits.
    wrapped = (step + (1 << 63)) % (1 << 64) - (1 << 63)
    for first, piece in _chunks(integers):
        ramp = torch.arange(piece.numel(), dtype=torch.int64) + first
        yield piece, (ramp * wrapped + start).to(integers.dtype)
