"""From a recipe to the bytes it describes: the same bits on every machine.

NumPy guarantees the raw stream of Philox but not the methods of `Generator` (NEP 19), and libm's `log` and
`cos` differ between platforms; so a value is a raw draw looked up in the recipe's table of quantiles by
arithmetic that IEEE 754 fixes to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch

from torchrepro.bundle.entries import Constant, Narrowed, Progression, RandomFloats, RandomIntegers, Recipe
from torchrepro.nouns.errors import BundleError

CHUNK = 1 << 22
"""Elements handled at a time, so that a storage needs no temporary of its own size."""

INTEGER = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def can_resemble(dtype: torch.dtype) -> bool:
    """True where torch can turn values of this dtype into float64 and back (float4 it cannot)."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return False
    component = dtype.to_real()
    try:
        torch.zeros(1, dtype=torch.float64).to(component).to(torch.float64)
    except (RuntimeError, NotImplementedError):
        return False
    return True


def follow(recipe: Recipe, nbytes: int, load: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The `nbytes` bytes that a recipe describes; `load` gives what the file holds of them."""
    match recipe:
        case Constant(element=element):
            _check(len(element) > 0 and nbytes % len(element) == 0, recipe)
            return torch.from_numpy(np.frombuffer(element, np.uint8).copy()).repeat(nbytes // len(element))
        case Progression():
            result = _empty_integers(recipe, nbytes, recipe.itemsize)
            for piece, wanted in with_progression(result, recipe.start, recipe.step):
                piece.copy_(wanted)
            return result.view(torch.uint8)
        case Narrowed():
            return _widen(recipe, _empty_integers(recipe, nbytes, recipe.itemsize), load())
        case RandomFloats():
            return _draw_floats(recipe, nbytes)
        case RandomIntegers():
            result = _empty_integers(recipe, nbytes, recipe.itemsize)
            _check(recipe.low < recipe.high, recipe)
            for piece, raw in _with_draws(result, recipe.seed):
                drawn = raw % np.uint64(recipe.high - recipe.low)
                piece.copy_(torch.from_numpy(drawn.astype(np.int64) + recipe.low))
            return result.view(torch.uint8)


def _check(condition: bool, recipe: Recipe) -> None:
    if not condition:
        kind = type(recipe).__name__
        raise BundleError(
            f"a {kind} recipe in the manifest does not fit its storage",
            next_step="the bundle is damaged: get a fresh copy",
        )


def _empty_integers(recipe: Recipe, nbytes: int, itemsize: int) -> torch.Tensor:
    _check(itemsize in INTEGER and nbytes % itemsize == 0, recipe)
    return torch.empty(nbytes // itemsize, dtype=INTEGER[itemsize], device="cpu")


def _widen(recipe: Narrowed, result: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    _check(stored.numel() == -(-result.numel() * recipe.bits // 8), recipe)
    raw = stored.numpy()
    narrowed = (
        np.unpackbits(raw, count=result.numel(), bitorder="little")
        if recipe.bits == 1
        else raw.view(f"<u{recipe.bits // 8}")
    )
    for index, piece in enumerate(result.split(CHUNK)):
        numbers = narrowed[index * CHUNK : index * CHUNK + piece.numel()].astype(np.int64) + recipe.minimum
        piece.copy_(torch.from_numpy(numbers))
    return result.view(torch.uint8)


def _draw_floats(recipe: RandomFloats, nbytes: int) -> torch.Tensor:
    dtype = getattr(torch, recipe.dtype, None)
    _check(isinstance(dtype, torch.dtype) and can_resemble(dtype) and nbytes % dtype.itemsize == 0, recipe)
    assert isinstance(dtype, torch.dtype)
    levels, quantiles = np.array(recipe.levels), np.array(recipe.quantiles)
    _check(levels.size == quantiles.size >= 2 and bool((np.diff(levels) > 0).all()), recipe)
    widths = np.diff(levels)
    result = torch.empty(nbytes // dtype.itemsize, dtype=dtype, device="cpu")
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
    raw_bytes = result.view(torch.uint8)
    for index, element in recipe.planted:
        _check(len(element) == dtype.itemsize and 0 <= index < result.numel(), recipe)
        raw_bytes[index * dtype.itemsize : (index + 1) * dtype.itemsize] = torch.tensor(
            list(element), dtype=torch.uint8, device="cpu"
        )
    return raw_bytes


def _with_draws(
    result: torch.Tensor, seed: int
) -> Iterator[tuple[torch.Tensor, np.ndarray[Any, np.dtype[np.uint64]]]]:
    philox = np.random.Philox(key=seed)
    for piece in result.split(CHUNK):
        raw = philox.random_raw(piece.numel())
        yield piece, cast("np.ndarray[Any, np.dtype[np.uint64]]", raw)


def with_progression(
    integers: torch.Tensor, start: int, step: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for index, piece in enumerate(integers.split(CHUNK)):
        ramp = torch.arange(piece.numel(), dtype=torch.int64) + index * CHUNK
        yield piece, (ramp * _wrap64(step) + start).to(integers.dtype)


def _wrap64(number: int) -> int:
    """As two's complement does: the step between two 64-bit integers may itself need 65 bits."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
