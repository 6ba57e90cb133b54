"""Tensors of any kind to entries and back: which parts a tensor has, and how its storage is looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from torchrepro.bundle.manifest import (
    AsSubclassEntry,
    DimMark,
    DTensorEntry,
    MkldnnEntry,
    NestedStridedEntry,
    PerChannelQuantizer,
    PerTensorQuantizer,
    SparseEntry,
    StridedEntry,
    SubclassEntry,
    TensorEntry,
    ValueEntry,
    ZeroTensorEntry,
)
from torchrepro.bundle.recipes import follow
from torchrepro.bundle.storage_entries import StorageEntry
from torchrepro.bundle.storage_file import ALIGNMENT, byte_span
from torchrepro.bundle.storages import NotKept, known
from torchrepro.bundle.subclasses import (
    build_subclass,
    pack_subclass,
)
from torchrepro.judge.clone import window
from torchrepro.judge.tensors import is_sparse, quantizer_of, sparse_parts
from torchrepro.nouns.errors import BundleError, damaged
from torchrepro.torch_api import dynamo
from torchrepro.torch_api.tensors import (
    empty_quantized,
    is_fake,
    is_functorch_wrapped,
    is_zero_tensor,
    nested_from_buffer,
    nested_geometry,
    set_lazy_bits,
    zero_tensor,
)

if TYPE_CHECKING:
    from torchrepro.bundle.values import Packer, Unpacker

Part = Callable[[str, Any], ValueEntry]
"""Packs a part of a tensor, which has a name."""


def pack_tensor(tensor: torch.Tensor, number: int, where: str, packing: Packer) -> TensorEntry:
    """Describe a tensor; `NotKept` with the reason for one that cannot be described."""
    try:
        return _pack_known_kind(tensor, number, where, packing)
    except (RuntimeError, NotImplementedError) as error:
        # Backends without storages, and layouts that torch adds, raise errors of their own.
        raise NotKept(str(error).split("\n", 1)[0]) from error


def _pack_known_kind(tensor: torch.Tensor, number: int, where: str, packing: Packer) -> TensorEntry:
    if is_functorch_wrapped(tensor):
        raise NotKept("it only exists inside a function transform (vmap, grad)")
    traits: dict[str, Any] = {
        "number": number,
        "requires_grad": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "parameter": isinstance(tensor, torch.nn.Parameter),
        "inference": tensor.is_inference(),
        "marks": read_marks(tensor),
    }

    def part(name: str, tensor: Any) -> ValueEntry:
        return packing.pack(tensor, f"{where}.{name}")

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and not is_fake(tensor):
        return pack_subclass(tensor, traits, where, packing)
    dtype, layout = (str(constant).removeprefix("torch.") for constant in (tensor.dtype, tensor.layout))
    if is_zero_tensor(tensor):
        traits |= {"size": tuple(tensor.size()), "stride": tensor.stride()}
        return ZeroTensorEntry(**traits, dtype=dtype, device=str(tensor.device))
    if tensor.layout is torch.strided and tensor.is_nested:
        names = ("buffer", "sizes", "strides", "offsets")
        parts = (tensor.values(), *nested_geometry(tensor))
        traits |= dict(zip(names, map(part, names, parts), strict=True))
        return NestedStridedEntry(**traits)
    if tensor.layout is torch.strided:
        size, stride = tuple(map(known, tensor.size())), tuple(map(known, tensor.stride()))
        offset = known(tensor.storage_offset())
        available = known(tensor.untyped_storage().nbytes())
        if 0 < available < byte_span(size, stride, offset, tensor.dtype)[1]:
            raise NotKept("its storage is smaller than its size says")
        return StridedEntry(
            **traits,
            storage=packing.storages.entry_for(tensor, where),
            dtype=dtype,
            size=size,
            stride=stride,
            offset=offset,
            view=packing.is_view(tensor) and available > 0,
            conj=tensor.is_conj(),
            neg=tensor.is_neg(),
            quantizer=_pack_quantizer(tensor, part) if tensor.is_quantized else None,
        )
    if is_sparse(tensor):
        indices, values = sparse_parts(tensor)
        return SparseEntry(
            **traits,
            layout=layout,
            size=tuple(tensor.size()),
            indices=tuple(map(part, indices, indices.values())),
            values=part("values", values),
            coalesced=tensor.layout is torch.sparse_coo and tensor.is_coalesced(),
        )
    if tensor.is_mkldnn:
        return MkldnnEntry(**traits, dense=part("dense", tensor.to_dense()))
    raise NotKept(f"its layout {tensor.layout} is unknown")


def _pack_quantizer(tensor: torch.Tensor, part: Part) -> PerTensorQuantizer | PerChannelQuantizer | None:
    match quantizer_of(tensor):
        case {"q_scale": scale, "q_zero_point": zero_point}:
            return PerTensorQuantizer(repr(scale), zero_point)
        case {
            "q_per_channel_scales": scales,
            "q_per_channel_zero_points": zero_points,
            "q_per_channel_axis": axis,
        }:
            return PerChannelQuantizer(part("scales", scales), part("zero_points", zero_points), axis)
    return None


LoadStorage = Callable[[str], torch.Tensor]
DeviceMap = Callable[[torch.device], torch.device]


def available_device(wanted: torch.device) -> torch.device:
    """Return the device itself where this machine has it, else the CPU."""
    if wanted.type in ("cpu", "meta"):
        return wanted
    module = getattr(torch, wanted.type, None)
    if module is None or not module.is_available():
        return torch.device("cpu")
    return wanted if (wanted.index or 0) < module.device_count() else torch.device(wanted.type, 0)


def find_constant(name: str, *kinds: type) -> Any:
    """Return torch.<name>, which must be a dtype, layout, ...; an older torch may not have it."""
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
        self._bases: dict[tuple[str, torch.dtype, bool], torch.Tensor] = {}

    def device(self, name: str) -> torch.device:
        return self._device_map(parse_device(name))

    def storage(self, entry: StorageEntry) -> torch.UntypedStorage:
        known, storage = self._loaded.get(entry.name, (None, None))
        if storage is None:
            storage = self._fetch(entry)
            self._loaded[entry.name] = (entry, storage)
        elif known != entry:
            raise damaged(f"two descriptions of the storage {entry.name!r} differ")
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
            raise damaged(
                f"the storage {entry.name!r} has {flat.numel()} bytes where the manifest says {entry.nbytes}"
            )
        if device.type != "cpu":
            return flat.to(device).untyped_storage()
        owns_all = flat.storage_offset() == 0 and flat.untyped_storage().nbytes() == entry.nbytes
        # Kernels may assume the alignment that torch's own allocator gives.
        return (flat if owns_all and flat.data_ptr() % ALIGNMENT == 0 else flat.clone()).untyped_storage()

    def view(self, entry: StridedEntry, quantizer: dict[str, Any]) -> torch.Tensor:
        """Return a tensor over the entry's storage, checked first: torch would grow a short storage."""
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
            raise damaged(
                f"a tensor of size {entry.size} and stride {entry.stride} does not fit storage {kept.name!r}"
            )
        storage = self.storage(kept)
        if entry.view and not quantizer and not freed:
            key = kept.name, dtype, entry.inference
            base = self._bases.setdefault(key, window(storage, dtype))
            with torch.enable_grad():  # a view made without grad mode could not be written to in place
                return base.as_strided(entry.size, entry.stride, offset)
        tensor = empty_quantized(dtype, self.device(kept.device), **quantizer)
        return tensor.set_(storage, offset, entry.size, entry.stride)

    def free_again(self) -> None:
        """Free storages that were freed under their tensors (as FSDP does): making the tensors grew them."""
        for entry, storage in self._loaded.values():
            if storage.nbytes() != entry.nbytes:
                storage.resize_(entry.nbytes)


def parse_device(name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise damaged(f"{name!r} is no device that torch knows") from error


class _NonLeaf(torch.autograd.Function):
    """Gives a tensor a history, so that it is not a leaf; not a view, so that it can be changed in place."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        return make()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.zeros((), device="cpu"), None


_WRONG_PARTS = (
    *(RuntimeError, TypeError, ValueError, AssertionError, LookupError, ArithmeticError),
    AttributeError,  # a class that is given another value in place of a tensor
)


def rebuild_tensor(entry: TensorEntry, unpacking: Unpacker) -> torch.Tensor:
    """Return the tensor that an entry describes."""

    def make() -> torch.Tensor:
        bare = _build(entry, unpacking)
        return bare.requires_grad_(False) if bare.requires_grad else bare

    try:
        with torch.inference_mode(entry.inference):
            if entry.parameter:
                tensor: torch.Tensor = torch.nn.Parameter(make(), requires_grad=entry.requires_grad)
            elif entry.requires_grad and not entry.leaf:
                with torch.enable_grad():
                    anchor = torch.zeros((), device="cpu", requires_grad=True)
                    tensor = cast(torch.Tensor, cast(Any, _NonLeaf).apply(anchor, make))
            else:
                tensor = make().requires_grad_(entry.requires_grad)
    except _WRONG_PARTS as error:
        # Only a manifest that was changed by hand, or a torch that builds this kind differently.
        reason = str(error).split("\n", 1)[0]
        raise damaged(f"torch cannot rebuild a tensor of the bundle: {reason}") from error
    _apply_marks(tensor, entry.marks)
    return tensor


def _build(entry: TensorEntry, unpacking: Unpacker) -> torch.Tensor:
    match entry:
        case StridedEntry():
            tensor = unpacking.storages.view(entry, _quantizer(entry, unpacking))
            set_lazy_bits(tensor, conj=entry.conj, neg=entry.neg)
            return tensor
        case ZeroTensorEntry():
            dtype, device = find_constant(entry.dtype, torch.dtype), unpacking.storages.device(entry.device)
            return zero_tensor(entry.size, dtype=dtype, device=device).as_strided(entry.size, entry.stride)
        case SparseEntry():
            return _build_sparse(entry, unpacking)
        case NestedStridedEntry():
            parts = [entry.buffer, entry.sizes, entry.strides, entry.offsets]
            buffer, sizes, strides, offsets = map(unpacking.unpack, parts)
            return nested_from_buffer(buffer, sizes, strides, offsets)
        case MkldnnEntry():
            return cast(torch.Tensor, unpacking.unpack(entry.dense).to_mkldnn())
        case SubclassEntry() | AsSubclassEntry() | DTensorEntry():
            return build_subclass(entry, unpacking)


def _quantizer(entry: StridedEntry, unpacking: Unpacker) -> dict[str, Any]:
    match entry.quantizer:
        case PerTensorQuantizer(scale=scale, zero_point=zero_point):
            return {"scale": float(scale), "zero_point": zero_point}
        case PerChannelQuantizer(scales=scales, zero_points=zero_points, axis=axis):
            parts = {"scales": unpacking.unpack(scales), "zero_points": unpacking.unpack(zero_points)}
            return {**parts, "axis": axis}
    return {}


def _build_sparse(entry: SparseEntry, unpacking: Unpacker) -> torch.Tensor:
    indices = [unpacking.unpack(part) for part in entry.indices]
    values = unpacking.unpack(entry.values)
    layout = find_constant(entry.layout, torch.layout)
    # The device is named because a default device would win over that of the parts. The invariants are
    # checked because kernels index with these values, and the bundle may be untrusted.
    options: dict[str, Any] = {"size": entry.size, "device": values.device, "check_invariants": True}
    if layout is torch.sparse_coo:
        (only,) = indices
        return torch.sparse_coo_tensor(only, values, is_coalesced=entry.coalesced, **options)
    compressed, plain = indices
    return torch.sparse_compressed_tensor(compressed, plain, values, layout=layout, **options)


MARKS: dict[Literal["dynamic", "maybe_dynamic", "unbacked", "static"], tuple[str, str]] = {
    "dynamic": ("_dynamo_dynamic_indices", "mark_dynamic"),
    "maybe_dynamic": ("_dynamo_weak_dynamic_indices", "maybe_mark_dynamic"),
    "unbacked": ("_dynamo_unbacked_indices", "mark_unbacked"),
    "static": ("_dynamo_static_indices", "mark_static"),
}
"""The attribute in which torch keeps each mark, and the function with which a user sets it."""


def read_marks(tensor: torch.Tensor) -> tuple[DimMark, ...]:
    """Return the marks that `mark_dynamic` and its siblings left on a tensor: they change what is compiled.

    They are sets of indices in attributes; a range is an object with dim, min and max.
    Checked on torch 2.11 to 2.15.
    """
    attributes = vars(tensor) if hasattr(tensor, "__dict__") else {}
    if not any(name.startswith("_dynamo_") for name in attributes):
        return ()
    ranges = {item.dim: (item.min, item.max) for item in attributes.get("_dynamo_dynamic_range", ())}
    return tuple(
        DimMark(mark, dim, *(ranges.get(dim, ()) if mark == "dynamic" else ()))
        for mark, (attribute, _) in MARKS.items()
        for dim in sorted(attributes.get(attribute, ()))
    )


def _apply_marks(tensor: torch.Tensor, marks: tuple[DimMark, ...]) -> None:
    """Mark the dimensions again, by the functions a user would call."""
    for mark in marks:
        span = {"min": mark.minimum, "max": mark.maximum} if mark.mark == "dynamic" else {}
        getattr(dynamo.decorators, MARKS[mark.mark][1])(tensor, mark.dim, **span)
