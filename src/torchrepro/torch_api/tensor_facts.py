"""What tensors are like, which share memory, and a quick check of many at once. Never their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import torch

from torchrepro.torch_api import dynamo
from torchrepro.torch_api.modes import DisableTorchFunction
from torchrepro.torch_api.tensors import storage_number

_ATTEMPTS = 4
"""How often to learn. More than once, as it learns nothing where two of the tensors are one object."""


class TensorFacts(NamedTuple):
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
    """Made in inference mode: autograd does not track it."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorFacts:
        with DisableTorchFunction():
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
            f"{self.kind.__name__} of {dtype}, shape {self.shape}, stride {self.stride}, on {self.device}"
        ]
        parts += [str(self.layout)] if self.layout is not torch.strided else []
        parts += ["requires grad"] if self.requires_grad else []
        parts += [name for name in ("conjugated", "negated", "inference") if getattr(self, name)]
        return ", ".join(parts)


def storage_places(tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return each one's storage, numbered in the order of appearance, and how far it is from the first in it.

    Storages that overlap count as one; distances are in bytes.
    """
    with DisableTorchFunction():
        spans = [_span(tensor) for tensor in tensors]
    group_of: dict[int, int] = {}
    reach = group = 0
    for start, end, identity, _ in sorted(spans):
        # One without memory (of a meta tensor, an empty one) starts at 0 and is identified by identity alone.
        group = group if start and start < reach else identity
        reach = max(reach, end)
        group_of[identity] = group
    numbers: dict[int, int] = {}
    first: dict[int, int] = {}
    pattern = tuple(numbers.setdefault(group_of[identity], len(numbers)) for _, _, identity, _ in spans)
    return pattern, tuple(
        start + offset - first.setdefault(number, start + offset)
        for (start, _, _, offset), number in zip(spans, pattern, strict=True)
    )


def _span(tensor: torch.Tensor) -> tuple[int, int, int, int]:
    """Return where its storage begins and ends, which storage it is, and where in it the tensor begins."""
    if tensor.layout is not torch.strided:
        return 0, 0, id(tensor), 0
    storage = tensor.untyped_storage()
    start, offset = storage.data_ptr(), int(tensor.storage_offset()) * tensor.element_size()
    return start, start + storage.nbytes(), storage_number(storage), offset


@cache
def _device(device: torch.device) -> torch.device:
    """Return one object for all equal devices: every `tensor.device` is a new one."""
    return device


class QuickTensors:
    """A check of many tensors at once by torch's own C++: about ten times as fast as reading each fact.

    Only its True counts. Where it returns False the conditions written in Python decide, so the guards that
    a reader sees are exact; and where they hold, it learns from those tensors what to accept from then on.
    """

    __slots__ = ("_left", "check")

    def __init__(self) -> None:
        self.check: Callable[..., bool] = lambda *tensors: False
        """Whether these tensors certainly match those that were learned from (and are distinct objects)."""
        self._left = _ATTEMPTS

    def learn(self, *tensors: torch.Tensor) -> None:
        """Take type, dispatch keys, dtype, device, requires_grad, shape and stride. Keeps no tensor alive.

        Checked on torch 2.11 to 2.15; both keywords must be given, or it crashes.
        """
        if self._left:
            self._left -= 1
            guards = dynamo.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
            self.check = guards.check
