"""Vary the tensors of a program: other sizes, unusual values, unusual layouts. Nothing here compiles.

Kernels go wrong at the borders of vectors and loops, in memory that is not dense, and at values that
ordinary inputs never have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import torch

from torchrepro.torch_api.pytree import tree_leaves, tree_map_only

SIZES = (0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 130, 1024)
"""Around nothing, one, and the widths of vectors and of unrolled loops."""
_MOST_ELEMENTS = 1 << 16
_COMMON = (1, 3, 8, 16, 17, 33, 64)


def tensors_of(values: Any) -> list[torch.Tensor]:
    """Return the tensors in nested values, each once."""
    leaves = (leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
    return list({id(leaf): leaf for leaf in leaves}.values())


def mapped(values: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return nested values with each tensor changed; one that occurs twice is changed once."""
    changed = {id(tensor): change(tensor) for tensor in tensors_of(values)}
    return tree_map_only(torch.Tensor, lambda tensor: changed[id(tensor)], values)


def chosen_sizes(random: Random, tensors: Sequence[torch.Tensor]) -> dict[int, int]:
    """Return a new size for each size that occurs: equal ones stay equal, and sizes of 1 mostly stay."""
    found = sorted({size for tensor in tensors for size in tensor.shape})
    choices = SIZES if random.random() < 0.6 else _COMMON
    chosen = {size: random.choice(choices) for size in found if size > 1 or random.random() < 0.1}
    while chosen and max(_elements(tensor, chosen) for tensor in tensors) > _MOST_ELEMENTS:
        largest = max(chosen, key=lambda size: chosen[size])
        chosen[largest] = max(1, chosen[largest] // 8)
    return chosen


def _elements(tensor: torch.Tensor, sizes: Mapping[int, int]) -> int:
    return math.prod(sizes.get(size, size) for size in tensor.shape)


def resized(random: Random, tensor: torch.Tensor, sizes: Mapping[int, int]) -> torch.Tensor:
    """Return a dense tensor of other sizes, with values from the range of the given one."""
    shape = [sizes.get(size, size) for size in tensor.shape]
    if shape == list(tensor.shape) or tensor.numel() == 0:
        return tensor if tensor.numel() else tensor.new_zeros(shape)
    generator = torch.Generator().manual_seed(random.getrandbits(62))
    if tensor.is_floating_point():
        finite = tensor[tensor.isfinite()].double()
        low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 1.0)
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
        return drawn.to(tensor.dtype)
    flat = tensor.reshape(-1)
    return flat[torch.randint(flat.numel(), shape, generator=generator)]


def with_special_values(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense copy with unusual values of its dtype at some places."""
    special = special_values(tensor.dtype)
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    flat = copy.view(-1)
    if not special or not flat.numel():
        return copy
    kinds = random.sample(special, min(len(special), random.choice((1, 2, len(special)))))
    places = range(flat.numel()) if random.random() < 0.3 else [
        random.randrange(flat.numel()) for _ in range(1 + flat.numel() // 4)
    ]  # fmt: skip
    for place in list(places)[:256]:
        flat[place] = random.choice(kinds)
    return copy


def special_values(dtype: torch.dtype) -> list[Any]:
    """Return the values of a dtype at which kernels go wrong."""
    if dtype is torch.bool or dtype.is_complex:
        return []
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        return [limits.min, limits.max, limits.max - 1, 0, 1]
    limit = torch.finfo(dtype)
    ordinary = [0.0, -0.0, 1.0, -1.0, 0.5, limit.eps]
    extreme = [limit.max, limit.min, limit.max / 2, limit.max**0.5, limit.tiny, -limit.tiny, limit.tiny / 4]
    return [*ordinary, *extreme, float("inf"), float("-inf"), float("nan")]


def with_layout(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values in memory that is laid out differently; sometimes one row for all (expanded)."""
    if tensor.layout is not torch.strided or not tensor.dim():
        return tensor
    return random.choice(_LAYOUTS)(random, tensor.detach())


def _transposed(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    order = random.sample(range(tensor.dim()), tensor.dim())
    back = [order.index(place) for place in range(tensor.dim())]
    return tensor.permute(order).contiguous().permute(back)


def _sliced(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    """Return a part of a larger tensor that does not begin at its first element."""
    axis, before = random.randrange(tensor.dim()), random.choice((1, 2, 3, 5))
    shape = list(tensor.shape)
    shape[axis] += before + random.choice((0, 1, 3))
    part = tensor.new_zeros(shape).narrow(axis, before, tensor.shape[axis])
    return part.copy_(tensor)


def _strided(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    """Return every second element of a tensor that is twice as long."""
    axis = random.randrange(tensor.dim())
    shape = list(tensor.shape)
    shape[axis] *= 2
    whole = tensor.new_zeros(shape)
    return whole[(slice(None),) * axis + (slice(None, None, 2),)].copy_(tensor)


def _expanded(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    axis = random.randrange(tensor.dim())
    if not tensor.shape[axis]:
        return tensor
    return tensor.narrow(axis, 0, 1).clone().expand(tensor.shape)


def _channels_last(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() != 4:
        return _transposed(random, tensor)
    return tensor.contiguous(memory_format=torch.channels_last)


_LAYOUTS = (_transposed, _sliced, _strided, _expanded, _channels_last)
