"""The precision of the truth: which dtype and device the reference runs in, and what is narrower."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Precision:
    """What the truth is computed in: a real dtype, and another device where the user's lacks that dtype."""

    real: torch.dtype = torch.float64
    device: torch.device | None = None

    def is_narrower(self, dtype: torch.dtype) -> bool:
        """Whether values of this dtype are to be widened."""
        return self.widened(dtype) is not dtype

    def widened(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype that takes the place of this one; integers, booleans and quantised dtypes stay."""
        return _widened(self.real, dtype)

    def moved(self, device: torch.device) -> torch.device:
        """The device that takes the place of this one."""
        return device if self.device is None else self.device


FLOAT64 = Precision()
FLOAT32_ON_CPU = Precision(torch.float32, torch.device("cpu"))

_DEVICES_WITHOUT_FLOAT64 = frozenset({"mps"})


def precision_for(device_types: Iterable[str]) -> tuple[Precision, tuple[str, ...]]:
    """The best precision that all these devices can give, and a note where it is not float64.

    A device without float64 (MPS) sends the whole run to the CPU, in float32.
    """
    lacking = sorted(set(device_types) & _DEVICES_WITHOUT_FLOAT64)
    if not lacking:
        return FLOAT64, ()
    return FLOAT32_ON_CPU, (f"{lacking[0]} has no float64: the reference ran in float32 on the CPU",)


@lru_cache(maxsize=256)
def _widened(real: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        wide = real.to_complex()
        return wide if dtype.itemsize < wide.itemsize else dtype
    if dtype.is_floating_point and dtype.itemsize < real.itemsize and not _is_packed(dtype):
        return real
    return dtype


def _is_packed(dtype: torch.dtype) -> bool:
    """Two values to a byte (`float4_e2m1fn_x2`): bits, as far as any kernel is concerned."""
    return str(dtype).endswith("_x2")


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """The arguments of an op with every tensor changed; lists, tuples and dicts are the only containers.

    Much cheaper than a pytree map, and it runs several times for each op.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([map_tensors(item, change) for item in value])
    if kind is dict:
        return {key: map_tensors(item, change) for key, item in value.items()}
    return value
