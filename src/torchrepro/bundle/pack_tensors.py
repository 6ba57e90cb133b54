"""From a tensor of any kind to an entry: which parts it has, and how they are looked at."""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

import torch

from torchrepro.bundle.dim_marks import read_marks
from torchrepro.bundle.entries import (
    DictEntry,
    MkldnnEntry,
    NestedStridedEntry,
    OpaqueEntry,
    PerChannelQuantizer,
    PerTensorQuantizer,
    SequenceEntry,
    SparseEntry,
    StridedEntry,
    SubclassEntry,
    TensorEntry,
    ValueEntry,
    ZeroTensorEntry,
)
from torchrepro.bundle.storages import NoHint, StorageTable, byte_span, known
from torchrepro.torch_api.tensors import hint, is_fake, is_functorch_wrapped, nested_geometry


class Packing(Protocol):
    """What packing a tensor needs from the walk over all values that it is a part of."""

    storages: StorageTable

    def pack(self, value: Any, where: str) -> ValueEntry: ...


def pack_tensor(tensor: torch.Tensor, number: int, where: str, packing: Packing) -> TensorEntry | OpaqueEntry:
    """Describe a tensor; one that cannot be described becomes opaque, with the reason."""
    try:
        return _pack_known_kind(tensor, number, where, packing)
    except NoHint as error:
        return OpaqueEntry(type_name(tensor), str(error))
    except (RuntimeError, NotImplementedError) as error:
        # Backends without storages, and layouts that torch adds, refuse in their own words.
        return OpaqueEntry(type_name(tensor), str(error).split("\n", 1)[0])


def type_name(value: Any) -> str:
    """`package.module.Class` of a value."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _pack_known_kind(
    tensor: torch.Tensor, number: int, where: str, packing: Packing
) -> TensorEntry | OpaqueEntry:
    if is_functorch_wrapped(tensor):
        return OpaqueEntry(type_name(tensor), "it only exists inside a function transform (vmap, grad)")
    traits: dict[str, Any] = {
        "number": number,
        "requires_grad": tensor.requires_grad,
        "leaf": tensor.is_leaf,
        "parameter": isinstance(tensor, torch.nn.Parameter),
        "inference": tensor.is_inference(),
        "marks": read_marks(tensor),
    }
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) and not is_fake(tensor):
        return _pack_subclass(tensor, traits, where, packing)

    def part(tensor: torch.Tensor, name: str) -> ValueEntry:
        return packing.pack(tensor, f"{where}.{name}")

    anything: Any = tensor
    if tensor._is_zerotensor():
        size, stride = tuple(tensor.size()), tensor.stride()
        return ZeroTensorEntry(
            **traits, dtype=_name(tensor.dtype), device=str(tensor.device), size=size, stride=stride
        )
    if tensor.layout is torch.strided and tensor.is_nested:
        sizes, strides, offsets = nested_geometry(tensor)
        return NestedStridedEntry(
            **traits,
            buffer=part(tensor.values(), "buffer"),
            sizes=part(sizes, "sizes"),
            strides=part(strides, "strides"),
            offsets=part(offsets, "offsets"),
        )
    if tensor.layout is torch.strided:
        return _pack_strided(tensor, traits, where, packing)
    if tensor.layout is torch.sparse_coo:
        indices = [part(tensor._indices(), "indices")]
        values = part(tensor._values(), "values")
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        indices = [
            part(tensor.crow_indices(), "crow_indices"),
            part(tensor.col_indices(), "col_indices"),
        ]
        values = part(tensor.values(), "values")
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        indices = [
            part(tensor.ccol_indices(), "ccol_indices"),
            part(tensor.row_indices(), "row_indices"),
        ]
        values = part(tensor.values(), "values")
    elif tensor.is_mkldnn:
        return MkldnnEntry(**traits, dense=part(anything.to_dense(), "dense"))
    else:
        return OpaqueEntry(type_name(tensor), f"its layout {tensor.layout} is unknown")
    return SparseEntry(
        **traits,
        layout=_name(tensor.layout),
        size=tuple(tensor.size()),
        indices=tuple(indices),
        values=values,
        coalesced=tensor.layout is torch.sparse_coo and tensor.is_coalesced(),
    )


def _name(constant: torch.dtype | torch.layout) -> str:
    return str(constant).removeprefix("torch.")


def _pack_strided(
    tensor: torch.Tensor, traits: dict[str, Any], where: str, packing: Packing
) -> StridedEntry | OpaqueEntry:
    size, stride = tuple(map(known, tensor.size())), tuple(map(known, tensor.stride()))
    offset = known(tensor.storage_offset())
    available = known(tensor.untyped_storage().nbytes())
    if 0 < available < byte_span(size, stride, offset, tensor.dtype)[1]:
        return OpaqueEntry(type_name(tensor), "its storage is smaller than its size says")
    return StridedEntry(
        **traits,
        storage=packing.storages.entry_for(tensor, where),
        dtype=_name(tensor.dtype),
        size=size,
        stride=stride,
        offset=offset,
        conj=tensor.is_conj(),
        neg=tensor.is_neg(),
        quantizer=_pack_quantizer(tensor, where, packing) if tensor.is_quantized else None,
    )


def _pack_quantizer(
    tensor: torch.Tensor, where: str, packing: Packing
) -> PerTensorQuantizer | PerChannelQuantizer | None:
    try:
        scheme = tensor.qscheme()
    except RuntimeError:
        return None  # torch.empty(..., dtype=torch.qint8): a quantised dtype without a quantizer
    if scheme in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return PerTensorQuantizer(repr(tensor.q_scale()), tensor.q_zero_point())
    return PerChannelQuantizer(
        packing.pack(tensor.q_per_channel_scales(), f"{where}.scales"),
        packing.pack(tensor.q_per_channel_zero_points(), f"{where}.zero_points"),
        tensor.q_per_channel_axis(),
    )


def _pack_subclass(
    tensor: torch.Tensor, traits: dict[str, Any], where: str, packing: Packing
) -> SubclassEntry | OpaqueEntry:
    name = type_name(tensor)
    if find_subclass(name) is not type(tensor):
        return OpaqueEntry(
            name, "only tensor subclasses of torch itself that define __tensor_flatten__ are kept"
        )
    attributes, context = cast(Any, tensor).__tensor_flatten__()
    entry = SubclassEntry(
        **traits,
        type=name,
        context=packing.pack(context, f"{where}.context"),
        inner={
            attribute: packing.pack(getattr(tensor, attribute), f"{where}.{attribute}")
            for attribute in attributes
        },
        size=_outer(tensor.size()),
        stride=_outer(tensor.stride()),
    )
    for part in (entry.context, *entry.inner.values()):
        obstacle = first_opaque(part)
        if obstacle is not None:
            return OpaqueEntry(name, f"its {obstacle.type} cannot be kept")
    return entry


def _outer(numbers: Any) -> tuple[int, ...]:
    hints = map(hint, numbers)
    return tuple(-1 if number is None else int(number) for number in hints)


def find_subclass(name: str) -> type[torch.Tensor] | None:
    """The tensor subclass of torch with this full name, if there is one that can be taken apart.

    Only torch's own modules are looked into: a name in a stranger's manifest must import nothing else.
    """
    module_name, _, class_name = name.rpartition(".")
    if module_name != "torch" and not module_name.startswith("torch."):
        return None
    try:
        found = getattr(importlib.import_module(module_name), class_name, None)
    except ImportError:
        return None
    if not (isinstance(found, type) and issubclass(found, torch.Tensor)):
        return None
    return found if hasattr(found, "__tensor_flatten__") and hasattr(found, "__tensor_unflatten__") else None


def first_opaque(entry: ValueEntry) -> OpaqueEntry | None:
    """What inside an entry could not be kept, if anything."""
    if isinstance(entry, OpaqueEntry):
        return entry
    parts: list[ValueEntry] = []
    if isinstance(entry, SequenceEntry):
        parts += entry.items
    elif isinstance(entry, DictEntry):
        parts += [part for item in entry.items for part in item]
    return next((found for found in map(first_opaque, parts) if found is not None), None)
