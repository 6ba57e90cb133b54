"""Storages too large to keep: an exact short form where there is one, else a recipe that resembles the data.

Integers and booleans are indices, masks and shapes: a wrong one changes what is computed, so they have only
exact forms. Floating values are described by quantiles rather than by a named distribution: activations after
a ReLU or a softmax are neither normal nor uniform, and the quantiles of any of them give back its moments.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, cast

import numpy as np
import torch

from torchrepro.bundle.entries import Constant, Narrowed, Progression, RandomFloats, RandomIntegers, Recipe
from torchrepro.bundle.generated_storages import CHUNK, INTEGER, can_resemble, with_progression

SAMPLE = 1 << 20
"""Elements looked at for the quantiles; counts, mean, std and extremes use all of them."""
FEW_VALUES = 256
"""Up to here every value has its own share: interpolated, an 8-bit dtype was 10% off in std."""

_TAIL = [2e-6, 1e-5, 1e-4, 1e-3, 5e-3]
_MIDDLE = [step / 40 for step in range(1, 40)]
LEVELS = [*_TAIL, 0.0125, *_MIDDLE, 0.9875, *(1 - level for level in reversed(_TAIL))]


def exact_recipe(flat: torch.Tensor, dtype: torch.dtype) -> tuple[Recipe, torch.Tensor | None] | None:
    """A short exact form of these bytes seen as `dtype`, and what of it must still be stored; else None."""
    itemsize = dtype.itemsize
    if flat.numel() == 0 or flat.numel() % itemsize:
        return None
    element = flat[:itemsize]
    rows = flat.view(-1, itemsize)
    if all(bool((piece == element).all()) for piece in rows.split(CHUNK)):
        return Constant(element.numpy().tobytes()), None
    if dtype.is_floating_point or dtype.is_complex or itemsize not in INTEGER:
        return None
    integers = flat.view(INTEGER[itemsize])
    start, step = int(integers[0]), int(integers[1]) - int(integers[0])
    if all(torch.equal(piece, wanted) for piece, wanted in with_progression(integers, start, step)):
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
    for index, piece in enumerate(integers.split(CHUNK)):
        narrowed[index * CHUNK : index * CHUNK + piece.numel()] = piece.to(torch.int64).numpy() - low
    return torch.from_numpy(narrowed.view(np.uint8))


def random_recipe(flat: torch.Tensor, dtype: torch.dtype, seed: int) -> RandomFloats:
    """Describe floating values so that values like them can be drawn again."""
    component = dtype.to_real()
    values = flat.view(component)
    count = values.numel()
    specials = {"nan": 0, "inf": 0, "-inf": 0}
    planted: dict[int, bytes] = {}
    zeros, finite, total, squares = 0, 0, 0.0, 0.0
    lowest, highest = (np.inf, -1), (-np.inf, -1)
    for index, piece in enumerate(values.split(CHUNK)):
        numbers = piece.to(torch.float64).numpy()
        for name, mask in (
            ("nan", np.isnan(numbers)),
            ("inf", np.isposinf(numbers)),
            ("-inf", np.isneginf(numbers)),
        ):
            found = int(mask.sum())
            if found and not specials[name]:
                first = index * CHUNK + int(mask.argmax())
                planted[first] = _element(values, first)
            specials[name] += found
        mask = np.isfinite(numbers)
        kept = numbers if mask.all() else numbers[mask]
        if not kept.size:
            continue
        positions = np.flatnonzero(mask) if kept.size < numbers.size else None
        for sign, pick in ((1, int(kept.argmin())), (-1, int(kept.argmax()))):
            where = index * CHUNK + (pick if positions is None else int(positions[pick]))
            if sign == 1 and kept[pick] < lowest[0]:
                lowest = (float(kept[pick]), where)
            if sign == -1 and kept[pick] > highest[0]:
                highest = (float(kept[pick]), where)
        finite += kept.size
        zeros += int((kept == 0).sum())
        with np.errstate(over="ignore"):
            total += float(kept.sum())
            squares += float(np.square(kept).sum())
    for _, where in (lowest, highest):
        if where >= 0:
            planted[where] = _element(values, where)
    mean = total / finite if finite else 0.0
    std = float(np.sqrt(max(squares / finite - mean * mean, 0.0))) if finite else 0.0
    sample = _finite_nonzero_sample(values)
    levels, quantiles = _table(sample)
    return RandomFloats(
        dtype=str(component).removeprefix("torch."),
        resembles=_shape_of(sample),
        mean=_json_float(mean),
        std=_json_float(std),
        minimum=lowest[0] if finite else 0.0,
        maximum=highest[0] if finite else 0.0,
        zeros=zeros / count if count else 0.0,
        nans=specials["nan"],
        infinities=specials["inf"],
        negative_infinities=specials["-inf"],
        levels=levels,
        quantiles=quantiles,
        planted=sorted(planted.items()),
        seed=seed,
    )


def _element(values: torch.Tensor, index: int) -> bytes:
    return values[index : index + 1].view(torch.uint8).numpy().tobytes()


def _json_float(number: float) -> float:
    """Moments of values near the largest float64 overflow, and JSON has no infinity."""
    return float(np.nan_to_num(number))


def _finite_nonzero_sample(values: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
    # An odd step: a power of two would look at a single column of most matrices.
    step = max(1, values.numel() // SAMPLE) | 1
    sample = values[::step].to(torch.float64).numpy()
    return cast("np.ndarray[Any, np.dtype[np.float64]]", sample[np.isfinite(sample) & (sample != 0)])


def _table(sample: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[list[float], list[float]]:
    """Levels and the values at them: a smooth curve, or steps for the few values of a coarse dtype."""
    if not sample.size:
        return LEVELS, [0.0] * len(LEVELS)
    distinct, counts = np.unique(sample, return_counts=True)
    if distinct.size > FEW_VALUES:
        return LEVELS, np.quantile(sample, LEVELS).tolist()
    edges = np.cumsum(counts) / sample.size
    starts = [0.0, *np.nextafter(edges[:-1], 1).tolist()]
    levels = [level for step in zip(starts, edges.tolist(), strict=True) for level in step]
    return levels, np.repeat(distinct, 2).tolist()


def _shape_of(sample: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    """Name the shape by how far the tails reach: (q97.5 - q2.5) / (q75 - q25) is 2.91 normal, 1.9 uniform."""
    named = (0.025, 0.25, 0.5, 0.75, 0.975)
    found = np.quantile(sample, named).tolist() if sample.size else [0.0] * 5
    q = dict(zip(named, found, strict=True))
    quartiles = q[0.75] - q[0.25]
    lower, upper = q[0.5] - q[0.025], q[0.975] - q[0.5]
    if not quartiles or not 0.8 < (upper or 1.0) / (lower or 1.0) < 1.25:
        return "other"
    reach = (lower + upper) / quartiles
    return "normal" if abs(reach - 2.91) < 0.3 else "uniform" if abs(reach - 1.9) < 0.15 else "other"


def unknown_data(dtype: torch.dtype, seed: int) -> Recipe:
    """For a tensor that never had data: standard normal floats; zeros and ones for everything else.

    Ones as well as zeros, because a computation on zeros alone hides most failures; nothing larger, because
    an index of 1 exists in nearly every table.
    """
    if not can_resemble(dtype):
        return RandomIntegers(dtype.itemsize, 0, 2, seed)
    normal = NormalDist()
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
        levels=LEVELS,
        quantiles=[normal.inv_cdf(level) for level in LEVELS],
        planted=[],
        seed=seed,
    )
