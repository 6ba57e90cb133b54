"""The manifest of a bundle: everything about a repro that is neither graph text nor bytes of tensors.

A value is one small JSON object, tagged by `kind`. The bytes of tensors are in `tensors.safetensors`: an
entry names the storage and says how to look at it. Nothing here can hold code, so reading it is safe.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from torchrepro.bundle.storage_entries import Entry, StorageEntry
from torchrepro.nouns.environment import Environment
from torchrepro.nouns.errors import BundleError, damaged
from torchrepro.nouns.probe import Probe
from torchrepro.nouns.repro import (
    Ambient,
    Compiler,
    CustomOpEntry,
    Origin,
    Place,
    ProcessGroups,
    Symbol,
    UserSetting,
)
from torchrepro.nouns.verdict import Signature

FORMAT = 1
"""Raised whenever a reader of the former version would misunderstand a bundle."""


# values: how each is described: tensors


class DimMark(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A mark that `mark_dynamic` or one of its siblings left on one dimension."""

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
    view: bool = False
    """Whether it is a view to autograd, without gradients, of a tensor that is not among the values."""
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
    """Kept as its dense copy and converted back: the blocked layout is internal to oneDNN."""

    dense: ValueEntry


class SubclassEntry(TensorTraits, tag="subclass", frozen=True, kw_only=True):
    """A tensor subclass, taken apart by `__tensor_flatten__`."""

    type: str
    """`torch.module.Class`; of the user `module:Class` or `source:NAME`, which need trust."""
    inner: dict[str, ValueEntry]
    context: ValueEntry
    size: tuple[int, ...]
    """The outer size; the ragged dimension of a jagged tensor, which has no number, is -1."""
    stride: tuple[int, ...]


class AsSubclassEntry(TensorTraits, tag="as_subclass", frozen=True, kw_only=True):
    """A tensor whose class changes what functions do with it (`__torch_function__`), and nothing else."""

    type: str
    """As that of `SubclassEntry`."""
    plain: ValueEntry
    attributes: dict[str, ValueEntry] = msgspec.field(default_factory=dict)


class DTensorEntry(TensorTraits, tag="dtensor", frozen=True, kw_only=True):
    """The part of a distributed tensor that this rank has."""

    local: ValueEntry
    mesh: ValueEntry
    placements: tuple[tuple[str | int, ...], ...]
    """The class and its fields, for each dimension of the mesh."""
    size: tuple[int, ...]
    stride: tuple[int, ...]


# everything else


class MeshEntry(Entry, tag="mesh", frozen=True, kw_only=True):
    """A `DeviceMesh`: global ranks in the order of its dimensions, each of which has a group."""

    number: int
    device: str
    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    names: tuple[str, ...] | None = None
    groups: tuple[str, ...]


class GroupEntry(Entry, tag="group", frozen=True):
    """A process group, by the name under which the manifest describes it."""

    number: int
    name: str


class SourceEntry(Entry, tag="source", frozen=True):
    """An object that the source in the bundle defines; needs trust."""

    number: int
    name: str


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
    StridedEntry
    | ZeroTensorEntry
    | SparseEntry
    | NestedStridedEntry
    | MkldnnEntry
    | SubclassEntry
    | AsSubclassEntry
    | DTensorEntry
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
    | MeshEntry
    | GroupEntry
    | SourceEntry
    | OpaqueEntry
)


def parts_of(data: Any) -> Iterator[msgspec.Struct]:
    """Yield every entry inside a tree of entries, the outer ones first."""
    if isinstance(data, msgspec.Struct):
        yield data
        data = [getattr(data, name) for name in data.__struct_fields__]
    for item in data.values() if isinstance(data, dict) else data if isinstance(data, list | tuple) else ():
        yield from parts_of(item)


class CollectiveEntry(msgspec.Struct, frozen=True):
    """A recorded collective, without its tensors."""

    op: str
    arguments: tuple[str | int | tuple[int, ...], ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What `manifest.json` says. Values are described here and stored in `tensors.safetensors`."""

    format: int = FORMAT
    created: str = ""
    run_id: str = ""
    place: Place
    compiler: Compiler
    ambient: Ambient
    environment: Environment
    backward: bool | None = None
    strict: bool = False
    tolerance: float | None = None
    symbols: tuple[Symbol, ...] = ()
    inputs: int
    """How many of the values are inputs: they are called `input.0`, `input.1`, ..."""
    earlier: int = 0
    """How many calls came before: their inputs are called `earlier.0.input.0`, ..."""
    values: dict[str, ValueEntry]
    """Inputs, `constant.NAME` of the graph and `rng.DEVICE`."""
    needs_trust: tuple[str, ...] = ()
    """Modules whose code the graph calls; running it imports them, so they have to be trusted."""
    custom_ops: tuple[CustomOpEntry, ...] = ()
    kernels: tuple[str, ...] = ()
    """Triton kernels of the user that the graph calls: their source is in `operators.py`."""
    user_settings: tuple[UserSetting, ...] = ()
    """Settings of the compilers that are code of the user."""
    ops: int = 0
    elements: int = 0
    """Elements of all input tensors together."""
    expected: Signature | None = None
    verdict: dict[str, Any] | None = None
    """The verdict with its evidence, for a reader."""
    origin: Origin | None = None
    """Which of the graphs of a program it is."""
    probe: Probe | None = None
    """What is asked of it instead of whether it agrees with eager."""
    groups: ProcessGroups | None = None
    """The process groups of the rank, where the graph needs them."""
    collectives: tuple[CollectiveEntry, ...] = ()
    """Collectives of the call: their tensors are `collective.0.given`, `collective.0.returned`, ..."""
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    """Parts of the graph and values that could not be kept: without them it can be shown, but not be run."""


class _FormatOnly(msgspec.Struct):
    format: int


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1)


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest; damage and a newer format are each one clear line."""
    try:
        version = msgspec.json.decode(data, type=_FormatOnly).format
        if version <= FORMAT:
            return msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise damaged(f"{where}: manifest.json is damaged ({exc})") from exc
    raise BundleError(
        f"{where}: the bundle has format {version}, this torchrepro reads up to {FORMAT}",
        next_step="upgrade torchrepro (pip install -U torchrepro)",
    )


def devices_of(manifest: Manifest) -> frozenset[str]:
    """Return the kinds of device other than the CPU on which a bundle has values.

    Generators have a state on every device that was in use, but only the user's own code may need it.
    """
    whole = manifest.place is Place.BEFORE_CAPTURE
    entries = {name: entry for name, entry in manifest.values.items() if whole or not name.startswith("rng.")}
    named = [name.removeprefix("rng.") for name in entries if name.startswith("rng.")]
    for part in parts_of(entries):
        named.append(part.name if isinstance(part, DeviceEntry) else str(getattr(part, "device", "cpu")))
    return frozenset({name.partition(":")[0] for name in named} - {"cpu", "meta"})
