"""What the reference runs in, and wide stand-ins for narrow tensors that it meets but does not own.

A stand-in is made per storage, so that an in-place write through one view is seen through every other, and
the tensor it stands for is never written. Tensors that were cloned to float64 beforehand never come here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from torchrepro.torch_api.modes import DisableTorchDispatch
from torchrepro.torch_api.tensors import is_functorch_wrapped, neg_view


@dataclass(frozen=True, slots=True)
class Precision:
    """What the truth is computed in: a real dtype, and another device where the user's lacks that dtype."""

    real: torch.dtype = torch.float64
    device: torch.device | None = None

    def is_narrower(self, dtype: torch.dtype) -> bool:
        """Return whether values of this dtype are to be widened."""
        return self.widened(dtype) is not dtype

    def widened(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype that takes the place of this one; integers, booleans and quantised dtypes stay."""
        return _widened(self.real, dtype)

    def moved(self, device: torch.device) -> torch.device:
        """Return the device that takes the place of this one."""
        return device if self.device is None else self.device


FLOAT64 = Precision()
FLOAT32_ON_CPU = Precision(torch.float32, torch.device("cpu"))

_DEVICES_WITHOUT_FLOAT64 = frozenset({"mps"})


def precision_for(device_types: Iterable[str]) -> tuple[Precision, tuple[str, ...]]:
    """Return the best precision that all these devices can give, and a note where it is not float64.

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


@contextmanager
def below_dispatch_modes() -> Iterator[None]:
    """Run tensor code that no dispatch mode sees. Checked on torch 2.11 to 2.15."""
    with DisableTorchDispatch():
        yield


class Shadows:
    """The stand-ins of one reference run. They live as long as the run does."""

    def __init__(self, precision: Precision) -> None:
        self._precision = precision
        self._by_tensor: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._rows: dict[tuple[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def is_narrow(self, tensor: torch.Tensor) -> bool:
        return self._precision.is_narrower(tensor.dtype)

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The stand-in of this tensor, the same object each time, so that its autograd history is kept."""
        known = self._by_tensor.get(id(tensor))
        if known is None:
            with torch.no_grad(), below_dispatch_modes():
                known = (tensor, self._build(tensor))
            known[1].requires_grad_(tensor.requires_grad)
            self._by_tensor[id(tensor)] = known
        return known[1]

    def known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the stand-in, if this tensor or its storage has one already."""
        if id(tensor) in self._by_tensor:
            return self._by_tensor[id(tensor)][1]
        if self._rows and is_plain(tensor) and storage_key(tensor) in self._rows:
            return self.of(tensor)
        return None

    def widened(self, tensor: torch.Tensor) -> torch.Tensor:
        """The value to read: of the stand-in where there is one, else a wide copy that is not kept."""
        known = self.known(tensor)
        return known if known is not None else widen(tensor, self._precision)

    def _build(self, tensor: torch.Tensor) -> torch.Tensor:
        if not is_plain(tensor):
            return widen(tensor.detach(), self._precision)
        key = storage_key(tensor)
        if key not in self._rows:
            row = elements_of_storage(tensor)
            self._rows[key] = (row, widen(row, self._precision))
        return over_storage(self._rows[key][1], tensor, self._precision.widened(tensor.dtype))


def widen(tensor: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Return a wide copy (the tensor itself where it is wide already and on the right device)."""
    return tensor.to(device=precision.moved(tensor.device), dtype=precision.widened(tensor.dtype))


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a strided window on a storage of its own dtype and nothing more."""
    return (
        tensor.layout is torch.strided
        and not has_its_own_dispatch(type(tensor))
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor._is_zerotensor()
        and not is_functorch_wrapped(tensor)
    )


def has_its_own_dispatch(kind: type) -> bool:
    """Return whether this class of tensors takes ops apart itself (`__torch_dispatch__`), as wrappers do."""
    return bool(kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__)  # type: ignore[attr-defined]


def storage_key(tensor: torch.Tensor) -> tuple[int, torch.dtype]:
    """Return what windows on one storage have in common, as long as they agree on the real numbers in it."""
    return tensor.untyped_storage()._cdata, _real(tensor.dtype)


def elements_of_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a plain tensor as one row of real numbers (two for each complex element)."""
    return window(tensor.untyped_storage(), _real(tensor.dtype))


def window(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.Tensor:
    """Return a whole storage as one row of this dtype."""
    row = torch.empty(0, dtype=dtype, device=storage.device)
    return row.set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))


def over_storage(row: torch.Tensor, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over the storage of `row` with the geometry of `like`; no view of it as autograd sees it.

    A tracked view made without grad mode could not be written to in place later.
    """
    made = torch.empty(0, dtype=dtype, device=row.device)
    made.set_(row.untyped_storage(), like.storage_offset(), like.size(), like.stride())
    if like.is_conj():
        made = made.conj()
    return neg_view(made) if like.is_neg() else made


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype
