"""How a value is described in the manifest: one small JSON object per value, tagged by `kind`.

The bytes of tensors are elsewhere (`tensors.safetensors`): an entry names the storage and says how to look at
it. Nothing here can hold code, so reading an entry from a stranger is safe.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from torchrepro.nouns.errors import BundleError, HarnessError


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of all entries. Defaults are left out, so that the common case stays one short line."""


# --- how the bytes of a storage come back when they are not in the file as they were ------------------------


class Constant(Entry, tag="constant", frozen=True):
    """Exact: every element is this one."""

    element: bytes


class Progression(Entry, tag="progression", frozen=True):
    """Exact: start, start + step, start + 2 step, ... in integers of `itemsize` bytes."""

    itemsize: int
    start: int
    step: int


class Narrowed(Entry, tag="narrowed", frozen=True):
    """Exact: integers of `itemsize` bytes stored as their distance from `minimum` in `bits` bits each."""

    itemsize: int
    bits: Literal[1, 8, 16, 32]
    minimum: int


class RandomFloats(Entry, tag="random_floats", frozen=True):
    """Not exact: floating values of the same range, quantiles and special values, drawn from `seed`."""

    dtype: str
    """The component type for complex values."""
    resembles: str
    """For a reader: normal, uniform, other, or unknown where there was no data to look at."""
    mean: float
    std: float
    minimum: float
    maximum: float
    zeros: float
    """Fraction of exact zeros; the other statistics of shape leave them out."""
    nans: int
    infinities: int
    negative_infinities: int
    levels: list[float]
    quantiles: list[float]
    """The value at each level: what generation follows."""
    planted: list[tuple[int, bytes]]
    """Elements kept exactly: where the extremes and the first special values stood."""
    seed: int


class RandomIntegers(Entry, tag="random_integers", frozen=True):
    """Not exact, only for data that never existed (fake tensors): integers in [low, high)."""

    itemsize: int
    low: int
    high: int
    seed: int


Recipe: TypeAlias = Constant | Progression | Narrowed | RandomFloats | RandomIntegers


class StorageEntry(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One storage. Not frozen: what is kept of it is decided after the last tensor that uses it is seen."""

    name: str
    nbytes: int
    device: str = "cpu"
    start: int = 0
    """Bytes cut off before the first one kept; offsets of tensors count from the uncut start."""
    recipe: Recipe | None = None


# --- tensors ------------------------------------------------------------------------------------------------


class DimMark(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What `mark_dynamic` and its siblings said about one dimension."""

    mark: Literal["dynamic", "maybe_dynamic", "unbacked", "static"]
    dim: int
    minimum: int | None = None
    maximum: int | None = None


class TensorTraits(Entry, frozen=True):
    """What every kind of tensor can have."""

    number: int
    """Identity: an entry `same` with this number is the same Python object."""
    requires_grad: bool = False
    leaf: bool = True
    parameter: bool = False
    inference: bool = False
    marks: tuple[DimMark, ...] = ()


class PerTensorQuantizer(Entry, tag="per_tensor", frozen=True):
    scale: str
    zero_point: int


class PerChannelQuantizer(Entry, tag="per_channel", frozen=True):
    scales: ValueEntry
    zero_points: ValueEntry
    axis: int


class StridedEntry(TensorTraits, tag="tensor", frozen=True, kw_only=True):
    storage: StorageEntry
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0
    conj: bool = False
    neg: bool = False
    quantizer: PerTensorQuantizer | PerChannelQuantizer | None = None


class ZeroTensorEntry(TensorTraits, tag="zero_tensor", frozen=True, kw_only=True):
    """Autograd's `ZeroTensor`: zeros that have no memory."""

    dtype: str
    device: str
    size: tuple[int, ...]
    stride: tuple[int, ...]


class SparseEntry(TensorTraits, tag="sparse", frozen=True, kw_only=True):
    """COO has indices; the compressed layouts have two index tensors."""

    layout: str
    size: tuple[int, ...]
    indices: tuple[ValueEntry, ...]
    values: ValueEntry
    coalesced: bool = False


class NestedStridedEntry(TensorTraits, tag="nested", frozen=True, kw_only=True):
    """The older nested tensor (layout strided): a flat buffer and the geometry of each component."""

    buffer: ValueEntry
    sizes: ValueEntry
    strides: ValueEntry
    offsets: ValueEntry


class MkldnnEntry(TensorTraits, tag="mkldnn", frozen=True, kw_only=True):
    """Kept as its dense copy and converted back: the blocked layout is oneDNN's own business."""

    dense: ValueEntry


class SubclassEntry(TensorTraits, tag="subclass", frozen=True, kw_only=True):
    """A tensor subclass of torch itself, taken apart by `__tensor_flatten__`."""

    type: str
    inner: dict[str, ValueEntry]
    context: ValueEntry
    size: tuple[int, ...]
    """The outer size; the ragged dimension of a jagged tensor, which has no number, is -1."""
    stride: tuple[int, ...]


# --- everything else ----------------------------------------------------------------------------------------


class NoneEntry(Entry, tag="none", frozen=True):
    pass


class BoolEntry(Entry, tag="bool", frozen=True):
    value: bool


class IntEntry(Entry, tag="int", frozen=True):
    value: int | str
    """Text beyond 64 bits, where JSON readers part ways."""


class FloatEntry(Entry, tag="float", frozen=True):
    value: str
    """The shortest decimal that reads back exactly; NaN as its bits, `nan:7ff8000000000000`."""


class ComplexEntry(Entry, tag="complex", frozen=True):
    real: str
    imag: str


class StrEntry(Entry, tag="str", frozen=True):
    value: str
    escaped: bool = False
    """Python's `unicode_escape`, for lone surrogates, which are no Unicode."""


class BytesEntry(Entry, tag="bytes", frozen=True):
    value: bytes


class SymbolEntry(Entry, tag="symbol", frozen=True):
    """A symbolic number: its hint, which is what comes back, and its expression, for a reader."""

    value: int | str | bool
    expression: str
    type: Literal["int", "float", "bool"] = "int"


class TorchConstantEntry(Entry, tag="torch", frozen=True):
    """torch.float32, torch.strided, torch.channels_last, ...: a dtype, layout, memory format or qscheme."""

    name: str


class DeviceEntry(Entry, tag="device", frozen=True):
    name: str


class GeneratorEntry(Entry, tag="generator", frozen=True):
    number: int
    device: str
    seed: int
    state: bytes


class SequenceEntry(Entry, tag="sequence", frozen=True):
    type: Literal["tuple", "list", "size", "set", "frozenset", "slice", "range"]
    items: tuple[ValueEntry, ...]
    number: int = -1
    """Identity of a list or set; -1 for the immutable ones."""


class DictEntry(Entry, tag="dict", frozen=True):
    number: int
    items: tuple[tuple[ValueEntry, ValueEntry], ...]


class EllipsisEntry(Entry, tag="ellipsis", frozen=True):
    pass


class SameEntry(Entry, tag="same", frozen=True):
    """The very object that another entry with this number describes."""

    number: int


class OpaqueEntry(Entry, tag="opaque", frozen=True):
    """Could not be kept as data. Loading it is an error that says so."""

    type: str
    reason: str


TensorEntry: TypeAlias = (
    StridedEntry | ZeroTensorEntry | SparseEntry | NestedStridedEntry | MkldnnEntry | SubclassEntry
)
ValueEntry: TypeAlias = (
    TensorEntry
    | NoneEntry
    | BoolEntry
    | IntEntry
    | FloatEntry
    | ComplexEntry
    | StrEntry
    | BytesEntry
    | SymbolEntry
    | TorchConstantEntry
    | DeviceEntry
    | GeneratorEntry
    | SequenceEntry
    | DictEntry
    | EllipsisEntry
    | SameEntry
    | OpaqueEntry
)


def parts_of(data: Any) -> Iterator[msgspec.Struct]:
    """Yield every entry inside a tree of entries, the outer ones first."""
    if isinstance(data, msgspec.Struct):
        yield data
        data = [getattr(data, name) for name in data.__struct_fields__]
    for item in data.values() if isinstance(data, dict) else data if isinstance(data, list | tuple) else ():
        yield from parts_of(item)


# --- scalars: exact in JSON, which by itself has no NaN, no big integers and no bytes -----------------------


def pack_scalar(value: Any) -> ValueEntry | None:
    """Return the entry of a value of exactly one of the built-in scalar types; None for anything else."""
    if value is None:
        return NoneEntry()
    if value is ...:
        return EllipsisEntry()
    # Exact types: an enum or a numpy number is an int or float too, and would come back as less.
    kind = type(value)
    if kind is bool:
        return BoolEntry(value)
    if kind is int:
        return IntEntry(value if -(1 << 63) <= value < 1 << 63 else hex(value))
    if kind is float:
        return FloatEntry(float_to_text(value))
    if kind is complex:
        return ComplexEntry(float_to_text(value.real), float_to_text(value.imag))
    if kind is str:
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return StrEntry(value.encode("unicode_escape").decode("ascii"), escaped=True)
        return StrEntry(value)
    if kind is bytes:
        return BytesEntry(value)
    return None


def unpack_scalar(entry: ValueEntry) -> Any:
    """Return the value of an entry that `pack_scalar` made, or of a symbolic number."""
    try:
        match entry:
            case NoneEntry():
                return None
            case EllipsisEntry():
                return ...
            case BoolEntry(value=value) | BytesEntry(value=value):
                return value
            case IntEntry(value=value):
                return int(value, 16) if isinstance(value, str) else value
            case FloatEntry(value=value):
                return text_to_float(value)
            case ComplexEntry(real=real, imag=imag):
                return complex(text_to_float(real), text_to_float(imag))
            case StrEntry(value=value, escaped=escaped):
                return value.encode("ascii").decode("unicode_escape") if escaped else value
            case SymbolEntry(value=value, type=type_):
                return float(value) if type_ == "float" else value
    except ValueError as error:
        raise BundleError(
            f"the manifest has a value that is none: {error}",
            next_step="the bundle is damaged: get a fresh copy",
        ) from error
    raise HarnessError(f"no reader for {type(entry).__name__}")


def float_to_text(value: float) -> str:
    """Write a float exactly: the shortest decimal, and for NaN its bits (sign and payload)."""
    return f"nan:{struct.pack('>d', value).hex()}" if math.isnan(value) else repr(value)


def text_to_float(text: str) -> float:
    if text.startswith("nan:"):
        try:
            (value,) = struct.unpack(">d", bytes.fromhex(text[4:]))
        except struct.error as error:
            raise ValueError(f"{text!r} is no NaN") from error
        return float(value)
    return float(text)
