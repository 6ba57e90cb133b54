"""What tensors are like, and which share memory. Never their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from torchrepro.frontend.guards.shown import type_name


def no_torch_function() -> Any:
    """A context in which looking at a tensor runs no mode or subclass of the user's. Torch 2.11 to 2.13."""
    return torch._C.DisableTorchFunction()


@dataclass(frozen=True, slots=True)
class TensorFacts:
    kind: type
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    """None for layouts that have none."""
    requires_grad: bool
    conjugated: bool
    """The value in memory is the conjugate of what it stands for; likewise the negative."""
    negated: bool
    inference: bool
    """Made in inference mode: autograd does not know it."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorFacts:
        with no_torch_function():
            return cls(
                kind=type(tensor),
                dtype=tensor.dtype,
                device=_device(tensor.device),
                layout=tensor.layout,
                shape=tuple(tensor.shape),
                stride=tensor.stride() if tensor.layout is torch.strided else None,
                requires_grad=tensor.requires_grad,
                conjugated=tensor.is_conj(),
                negated=tensor.is_neg(),
                inference=tensor.is_inference(),
            )

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        parts = [
            f"{type_name(self.kind)} of {dtype}, shape {self.shape}, stride {self.stride}, on {self.device}"
        ]
        parts += [str(self.layout)] if self.layout is not torch.strided else []
        parts += ["requires grad"] if self.requires_grad else []
        parts += [name for name in ("conjugated", "negated", "inference") if getattr(self, name)]
        return ", ".join(parts)


def storage_pattern(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The number of each one's storage, in the order of appearance; storages that overlap count as one."""
    with no_torch_function():
        storages = [each.untyped_storage() for each in tensors]
        spans = sorted((each.data_ptr(), each.data_ptr() + each.nbytes(), each._cdata) for each in storages)
    group_of: dict[int, int] = {}
    reach = group = 0
    for start, end, identity in spans:
        # A storage without memory (a meta tensor, an empty one) starts at 0 and is known by its identity alone.
        group = group if start and start < reach else identity
        reach = max(reach, end)
        group_of[identity] = group
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(group_of[each._cdata], len(numbers)) for each in storages)


def storage_offsets(tensors: Sequence[torch.Tensor], pattern: tuple[int, ...]) -> tuple[int, ...]:
    """How far in bytes each lies from the first one of its storage."""
    with no_torch_function():
        places = [
            each.untyped_storage().data_ptr() + int(each.storage_offset()) * each.element_size()
            for each in tensors
        ]
    first: dict[int, int] = {}
    return tuple(
        place - first.setdefault(number, place) for place, number in zip(places, pattern, strict=True)
    )


@cache
def _device(device: torch.device) -> torch.device:
    """One object for all equal ones: every look at a tensor makes another."""
    return device
