"""Walks equally shaped tensors in small blocks, without copying any of them as a whole.

The blocks follow the memory order of the first tensor (a channels-last tensor is read in channels-last
order), so that reading stays sequential; an element found in a block is translated back to its index.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch

Selection = tuple[int | slice, ...]


@dataclass(frozen=True, slots=True)
class Walk:
    """How to cut tensors of one shape: the order of the dimensions and the parts of the index space."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    flat: bool
    parts: tuple[Selection, ...]

    @classmethod
    def over(cls, tensors: Sequence[torch.Tensor], limit: int) -> Walk:
        """Return a walk in blocks of at most `limit` elements over tensors of one shape."""
        first = tensors[0]
        shape = tuple(first.shape)
        strides = first.stride()
        order = tuple(sorted(range(first.dim()), key=lambda dim: (-strides[dim], dim)))
        flat = all(tensor.permute(order).is_contiguous() for tensor in tensors)
        walked = (first.numel(),) if flat else tuple(shape[dim] for dim in order)
        return cls(shape, order, flat, tuple(_cut(walked, limit)))

    def arranged(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a view of the tensor that `parts` can be taken from."""
        view = tensor.permute(self.order)
        return view.view(-1) if self.flat else view

    def index_of(self, part: Selection, offset: int) -> tuple[int, ...]:
        """The index in the original shape of the element at `offset` in the row-major order of a part."""
        walked = [self.shape[dim] for dim in self.order]
        if self.flat:
            (chosen,) = part
            assert isinstance(chosen, slice)
            position = _unravel(chosen.start + offset, walked)
        else:
            position = []
            widths = [chosen.stop - chosen.start for chosen in part if isinstance(chosen, slice)]
            inner = iter(_unravel(offset, widths))
            for chosen in part:
                position.append(chosen if isinstance(chosen, int) else chosen.start + next(inner))
        index = [0] * len(self.shape)
        for dim, place in zip(self.order, position, strict=True):
            index[dim] = place
        return tuple(index)


def _cut(shape: tuple[int, ...], limit: int) -> Iterator[Selection]:
    """Selections that cover the shape: whole inner dimensions, one cut dimension, single outer indices."""
    if math.prod(shape) == 0:
        return
    inner, cut = 1, len(shape) - 1
    while cut > 0 and inner * shape[cut] * 2 <= limit:
        inner *= shape[cut]
        cut -= 1
    if cut < 0:
        yield ()
        return
    step = max(1, limit // inner)
    whole = tuple(slice(0, size) for size in shape[cut + 1 :])
    for outer in product(*(range(size) for size in shape[:cut])):
        for start in range(0, shape[cut], step):
            yield (*outer, slice(start, min(start + step, shape[cut])), *whole)


def _unravel(offset: int, shape: Sequence[int]) -> list[int]:
    index = []
    for size in reversed(shape):
        offset, place = divmod(offset, size)
        index.append(place)
    return index[::-1]


def sample_positions(count: int, wanted: int) -> torch.Tensor:
    """About evenly spread positions below `count`, jittered so that no stride of a shape is favoured.

    Deterministic and independent of torch's random state: comparing must not disturb the compared.
    """
    if count <= wanted:
        return torch.arange(count)
    step = count / wanted
    jitter = (torch.arange(wanted, dtype=torch.float64) * 0.6180339887498949) % 1.0
    return (torch.arange(wanted, dtype=torch.float64) * step + jitter * (step - 1)).long()


def take(tensor: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return the elements at row-major positions as float64 on the CPU; complex numbers as pairs."""
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    if tensor.dim() == 0:
        picked = tensor.reshape(1)
    elif positions.numel() == tensor.numel() or tensor.is_contiguous():
        picked = tensor.reshape(-1)[positions.to(tensor.device)]
    else:
        picked = tensor[torch.unravel_index(positions.to(tensor.device), tensor.shape)]
    chosen = torch.empty(picked.shape, dtype=wide)
    chosen.copy_(picked)
    return torch.view_as_real(chosen).reshape(-1) if tensor.is_complex() else chosen
