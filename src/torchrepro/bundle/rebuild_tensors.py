"""From an entry back to the tensor: storages are loaded once each and looked at as they were."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

import torch

from torchrepro.bundle.dim_marks import apply_marks
from torchrepro.bundle.entries import (
    MkldnnEntry,
    NestedStridedEntry,
    PerChannelQuantizer,
    PerTensorQuantizer,
    SparseEntry,
    StorageEntry,
    StridedEntry,
    SubclassEntry,
    TensorEntry,
    ValueEntry,
    ZeroTensorEntry,
)
from torchrepro.bundle.generated_storages import follow
from torchrepro.bundle.pack_tensors import find_subclass
from torchrepro.bundle.storages import ALIGNMENT, byte_span
from torchrepro.nouns.errors import BundleError
from torchrepro.torch_api.tensors import empty_quantized, nested_from_buffer, set_lazy_bits, zero_tensor

DAMAGED = "the bundle is damaged: get a fresh copy, or capture the failure again"

LoadStorage = Callable[[str], torch.Tensor]
DeviceMap = Callable[[torch.device], torch.device]


class Unpacking(Protocol):
    """What rebuilding a tensor needs from the walk over all entries that it is a part of."""

    storages: StorageLoader

    def unpack(self, entry: ValueEntry) -> Any: ...


def available_device(wanted: torch.device) -> torch.device:
    """The device itself where this machine has it, else the CPU."""
    if wanted.type in ("cpu", "meta"):
        return wanted
    module = getattr(torch, wanted.type, None)
    if module is None or not module.is_available():
        return torch.device("cpu")
    return wanted if (wanted.index or 0) < module.device_count() else torch.device(wanted.type, 0)


def find_constant(name: str, *kinds: type) -> Any:
    """torch.<name>, which must be a dtype, layout, ...; an older torch may not have it."""
    found = getattr(torch, name, None)
    if not isinstance(found, kinds):
        raise BundleError(
            f"the bundle uses torch.{name}, which torch {torch.__version__} does not have",
            next_step="use the torch version that the manifest names",
        )
    return found


class StorageLoader:
    """Loads each storage once, onto its device."""

    def __init__(self, load: LoadStorage, device_map: DeviceMap) -> None:
        self._load = load
        self._device_map = device_map
        self._loaded: dict[str, tuple[StorageEntry, torch.UntypedStorage]] = {}

    def device(self, name: str) -> torch.device:
        return self._device_map(parse_device(name))

    def storage(self, entry: StorageEntry) -> torch.UntypedStorage:
        known, storage = self._loaded.get(entry.name, (None, None))
        if storage is None:
            storage = self._fetch(entry)
            self._loaded[entry.name] = (entry, storage)
        elif known != entry:
            raise BundleError(f"two descriptions of the storage {entry.name!r} differ", next_step=DAMAGED)
        return storage

    def _fetch(self, entry: StorageEntry) -> torch.UntypedStorage:
        device = self.device(entry.device)
        if entry.nbytes == 0 or device.type == "meta":
            return torch.empty(entry.nbytes, dtype=torch.uint8, device=device).untyped_storage()
        if entry.recipe is None:
            flat = self._load(entry.name)
        else:
            flat = follow(entry.recipe, entry.nbytes, lambda: self._load(entry.name))
        if flat.numel() != entry.nbytes:
            raise BundleError(
                f"the storage {entry.name!r} has {flat.numel()} bytes where the manifest says {entry.nbytes}",
                next_step=DAMAGED,
            )
        if device.type != "cpu":
            return flat.to(device).untyped_storage()
        owns_all = flat.storage_offset() == 0 and flat.untyped_storage().nbytes() == entry.nbytes
        # Kernels may assume the alignment that torch's own allocator gives.
        return (flat if owns_all and flat.data_ptr() % ALIGNMENT == 0 else flat.clone()).untyped_storage()

    def view(
        self, entry: StridedEntry, empty: Callable[[torch.dtype, torch.device], torch.Tensor]
    ) -> torch.Tensor:
        """A tensor over the entry's storage. Checked first: torch would grow a short storage."""
        dtype = find_constant(entry.dtype, torch.dtype)
        kept = entry.storage
        offset = entry.offset - kept.start // dtype.itemsize
        sane = (
            len(entry.size) == len(entry.stride)
            and min((*entry.size, *entry.stride, offset, kept.nbytes)) >= 0
        )
        if sane:
            low, high = byte_span(entry.size, entry.stride, offset, dtype)
            freed = kept.nbytes == 0
            sane = kept.start % dtype.itemsize == 0 and (freed or low == high or high <= kept.nbytes)
        if not sane:
            raise BundleError(
                f"a tensor of size {entry.size} and stride {entry.stride} does not fit storage {kept.name!r}",
                next_step=DAMAGED,
            )
        storage = self.storage(kept)
        tensor = empty(dtype, self.device(kept.device))
        return tensor.set_(storage, offset, entry.size, entry.stride)

    def free_again(self) -> None:
        """Storages that were freed under their tensors (as FSDP does) grew when these were made."""
        for entry, storage in self._loaded.values():
            if storage.nbytes() != entry.nbytes:
                storage.resize_(entry.nbytes)


def parse_device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise BundleError(f"{name!r} is no device that torch knows", next_step=DAMAGED) from error


class _NonLeaf(torch.autograd.Function):
    """Gives a tensor a history, so that it is not a leaf; not a view, so that it can be changed in place."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        return make()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.zeros((), device="cpu"), None


def rebuild_tensor(entry: TensorEntry, unpacking: Unpacking) -> torch.Tensor:
    """The tensor that an entry describes."""

    def make() -> torch.Tensor:
        bare = _build(entry, unpacking)
        return bare.requires_grad_(False) if bare.requires_grad else bare

    def mode() -> AbstractContextManager[Any]:
        return torch.inference_mode(entry.inference)

    try:
        with mode():
            if entry.parameter:
                tensor: torch.Tensor = torch.nn.Parameter(make(), requires_grad=entry.requires_grad)
            elif entry.requires_grad and not entry.leaf:
                with torch.enable_grad():
                    anchor = torch.zeros((), device="cpu", requires_grad=True)
                    tensor = cast(torch.Tensor, cast(Any, _NonLeaf).apply(anchor, make))
            else:
                tensor = make().requires_grad_(entry.requires_grad)
    except (RuntimeError, TypeError, ValueError, AssertionError, LookupError, ArithmeticError) as error:
        # Only a manifest that was changed by hand, or a torch that builds this kind differently.
        reason = str(error).split("\n", 1)[0]
        raise BundleError(
            f"torch cannot rebuild a tensor of the bundle: {reason}", next_step=DAMAGED
        ) from error
    apply_marks(tensor, entry.marks)
    return tensor


def _build(entry: TensorEntry, unpacking: Unpacking) -> torch.Tensor:
    match entry:
        case StridedEntry():
            tensor = unpacking.storages.view(
                entry, lambda dtype, device: _empty(entry, dtype, device, unpacking)
            )
            set_lazy_bits(tensor, conj=entry.conj, neg=entry.neg)
            return tensor
        case ZeroTensorEntry():
            dtype, device = find_constant(entry.dtype, torch.dtype), unpacking.storages.device(entry.device)
            return zero_tensor(entry.size, dtype, device).as_strided(entry.size, entry.stride)
        case SparseEntry():
            return _build_sparse(entry, unpacking)
        case NestedStridedEntry():
            parts = [entry.buffer, entry.sizes, entry.strides, entry.offsets]
            buffer, sizes, strides, offsets = map(unpacking.unpack, parts)
            return nested_from_buffer(buffer, sizes, strides, offsets)
        case MkldnnEntry():
            return cast(torch.Tensor, unpacking.unpack(entry.dense).to_mkldnn())
        case SubclassEntry():
            found: Any = find_subclass(entry.type)
            if found is None:
                raise BundleError(
                    f"the bundle holds a {entry.type}, which torch {torch.__version__} does not have",
                    next_step="use the torch version that the manifest names",
                )
            context = unpacking.unpack(entry.context)
            inner = {name: unpacking.unpack(part) for name, part in entry.inner.items()}
            return cast(torch.Tensor, found.__tensor_unflatten__(inner, context, entry.size, entry.stride))


def _empty(
    entry: StridedEntry, dtype: torch.dtype, device: torch.device, unpacking: Unpacking
) -> torch.Tensor:
    match entry.quantizer:
        case None:
            return empty_quantized(dtype, device)
        case PerTensorQuantizer(scale=scale, zero_point=zero_point):
            return empty_quantized(dtype, device, scale=float(scale), zero_point=zero_point)
        case PerChannelQuantizer(scales=scales, zero_points=zero_points, axis=axis):
            return empty_quantized(
                dtype,
                device,
                scales=unpacking.unpack(scales),
                zero_points=unpacking.unpack(zero_points),
                axis=axis,
            )


def _build_sparse(entry: SparseEntry, unpacking: Unpacking) -> torch.Tensor:
    indices = [unpacking.unpack(part) for part in entry.indices]
    values = unpacking.unpack(entry.values)
    layout = find_constant(entry.layout, torch.layout)
    # The device is named because a default device would win over that of the parts. The invariants are
    # checked because kernels index with what stands here, and the bundle may be a stranger's.
    options: dict[str, Any] = {"size": entry.size, "device": values.device, "check_invariants": True}
    if layout is torch.sparse_coo:
        (only,) = indices
        return torch.sparse_coo_tensor(only, values, is_coalesced=entry.coalesced, **options)
    compressed, plain = indices
    return torch.sparse_compressed_tensor(compressed, plain, values, layout=layout, **options)
