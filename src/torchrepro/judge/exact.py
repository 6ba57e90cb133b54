"""Compares what must be equal to the bit or the digit: integers, booleans, packed bytes, and strict mode."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchrepro.judge.blocks import Walk
from torchrepro.judge.exotic import UNREADABLE_DTYPES

_BLOCK = 1 << 20
_SAME_WIDTH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Unequal:
    """How many elements differ, and where the difference is largest."""

    count: int
    index: tuple[int, ...] | None
    max_abs: float


def unequal(ref: torch.Tensor, res: torch.Tensor, *, bits: bool = False) -> Unequal:
    """Compare element by element without any conversion to floating point.

    With `bits`, floating tensors differ wherever their bits do (-0.0 is not 0.0), NaNs apart.
    """
    walk = Walk.over([ref, res], _BLOCK)
    left, right = walk.arranged(ref), walk.arranged(res)
    count, worst, index = 0, -1.0, None
    for part in walk.parts:
        old, new = left[part], right[part]
        if new.device != old.device:
            new = new.to(old.device)
        differs = _differing(old, new, bits=bits)
        found = int(differs.sum())
        if not found:
            continue
        count += found
        # The size of a difference is only told, never judged: beyond 2**53 it is rounded.
        size = _magnitude(new, old).masked_fill_(~differs, -1.0).reshape(-1)
        offset = int(size.argmax())
        if float(size[offset]) > worst:
            worst, index = float(size[offset]), walk.index_of(part, offset)
    return Unequal(count, index, max(worst, 0.0))


def _differing(ref: torch.Tensor, res: torch.Tensor, *, bits: bool) -> torch.Tensor:
    if ref.is_complex():
        old, new = torch.view_as_real(ref.resolve_conj()), torch.view_as_real(res.resolve_conj())
        return _differing(old, new, bits=bits).any(-1)
    if ref.dtype is torch.bool:
        return torch.ne(ref, res)
    ref, res = ref.resolve_neg(), res.resolve_neg()
    width = _SAME_WIDTH[ref.element_size()]
    differs = torch.ne(ref.view(width), res.view(width))
    if bits and ref.is_floating_point() and bool(differs.any()):
        differs &= ~(ref.isnan() & res.isnan())
    return differs


def _magnitude(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """The size of a difference as float64; zero where the dtype has no arithmetic."""
    if new.dtype in UNREADABLE_DTYPES:
        return torch.zeros(new.shape, dtype=torch.float64, device=new.device)
    wide = torch.complex128 if new.is_complex() else torch.float64
    return (new.to(wide) - old.to(wide)).abs().nan_to_num_(nan=float("inf"))
