"""The error of a value against the truth as one number, and its elements that are not finite, counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchrepro.locate.observations import Odd

_BLOCK = 1 << 22
"""Elements that are looked at in one go: three copies of them in float64 are 100 MB."""


def relative_error(value: Any, truth: Any) -> float | None:
    """The largest error, relative to the largest magnitude of the truth; None where they cannot be compared.

    Of a truth that is zero everywhere any error is all there is: 1. A number that is not finite where the
    truth is has an infinite error.
    """
    if not _comparable(value, truth):
        return None
    worst = scale = 0.0
    for part, true in _blocks(value, truth):
        known = true.isfinite()
        if bool((known & ~part.isfinite() & _rounded(true, value.dtype).isfinite()).any()):
            return float("inf")
        both = known & part.isfinite()
        worst = max(worst, _largest((part - true)[both]))
        scale = max(scale, _largest(true[known]))
    if not worst:
        return 0.0
    return worst / scale if scale else 1.0


def oddities(value: Any, truth: Any) -> Odd:
    """How many elements are not finite; without a truth none of them counts as strange."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return Odd()
    compared = _comparable(value, truth)
    nan = infinite = strange = 0
    for part, true in _blocks(value, truth if compared else value):
        nan += int(part.isnan().sum())
        infinite += int(part.isinf().sum())
        if compared:
            strange += int((~part.isfinite() & true.isfinite()).sum())
    return Odd(nan, infinite, strange)


def _comparable(value: Any, truth: Any) -> bool:
    both = isinstance(value, torch.Tensor) and isinstance(truth, torch.Tensor)
    return both and value.shape == truth.shape and value.layout is truth.layout is torch.strided


def _blocks(value: torch.Tensor, truth: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Both as rows of float64, a block at a time; a complex number is two elements."""
    rows = [_row(value.detach()), _row(truth.detach())]
    for start in range(0, rows[0].numel(), _BLOCK):
        part, true = (row[start : start + _BLOCK].to("cpu", torch.float64) for row in rows)
        yield part, true


def _row(tensor: torch.Tensor) -> torch.Tensor:
    plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return plain.reshape(-1)


def _rounded(true: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The truth as the dtype can hold it: beyond its range, infinity is right."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return true
    return true.to(dtype.to_real() if dtype.is_complex else dtype).to(torch.float64)


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0
