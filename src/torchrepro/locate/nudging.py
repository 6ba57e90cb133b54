"""Inputs changed by about one rounding: what a computation makes of that tells how it is conditioned."""

from __future__ import annotations

from typing import Any

import torch


def nudged(inputs: tuple[Any, ...], seed: int, eps: float | None = None) -> tuple[Any, ...]:
    """The inputs with each floating number changed by one rounding of its dtype, up or down.

    `eps` is another relative change, for inputs that have been widened. The same object stays one object;
    integers and what holds no numbers stay as they are.
    """
    generator = torch.Generator().manual_seed(seed)
    made: dict[int, Any] = {}
    return tuple(made.setdefault(id(item), _nudged(item, generator, eps)) for item in inputs)


def rounding_of(dtype: torch.dtype) -> float:
    """The relative distance of neighbouring numbers."""
    return torch.finfo(dtype.to_real() if dtype.is_complex else dtype).eps


def can_be_nudged(value: Any) -> bool:
    """Whether it holds floating numbers that can be changed one by one."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        return False
    return value.is_floating_point() or value.is_complex()


def _nudged(value: Any, generator: torch.Generator, eps: float | None) -> Any:
    if not can_be_nudged(value):
        return value
    step = rounding_of(value.dtype) if eps is None else eps
    signs = torch.randint(0, 2, value.shape, generator=generator).mul_(2).sub_(1).to(value.device)
    wide = torch.complex128 if value.is_complex() else torch.float64
    with torch.no_grad():
        changed = value.detach().to(wide) * (1 + step * signs)
        return changed.to(value.dtype).requires_grad_(value.requires_grad)
