"""Values to data and back: what a graph was called with, described in JSON, with the bytes next to it.

Never a pickle: what has no description here is left out, with a note.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import torch

from torchrepro.bundle.manifest import (
    BoolEntry,
    BytesEntry,
    ComplexEntry,
    DeviceEntry,
    DictEntry,
    EllipsisEntry,
    FloatEntry,
    GeneratorEntry,
    GroupEntry,
    IntEntry,
    MeshEntry,
    NoneEntry,
    OpaqueEntry,
    SameEntry,
    SequenceEntry,
    SourceEntry,
    StrEntry,
    StridedEntry,
    SymbolEntry,
    TensorTraits,
    TorchConstantEntry,
    ValueEntry,
    ZeroTensorEntry,
    parts_of,
)
from torchrepro.bundle.storage_entries import StorageEntry
from torchrepro.bundle.storages import NotKept, StorageTable
from torchrepro.bundle.subclasses import build_distributed, pack_distributed
from torchrepro.bundle.tensors import (
    DeviceMap,
    LoadStorage,
    StorageLoader,
    available_device,
    find_constant,
    pack_tensor,
    parse_device,
    rebuild_tensor,
)
from torchrepro.nouns.errors import BundleError, CannotSerialise, HarnessError, class_path, damaged, in_a_line
from torchrepro.torch_api.tensors import (
    base_without_grad,
    expression,
    has_gradient_hooks,
    hint,
    plain_torch,
)

DEFAULT_SIZE_CAP = 1 << 30
FindCode = Callable[[str, Mapping[str, Any]], Any]
_NO_CODE: Mapping[int, str] = MappingProxyType({})
_Kind = Literal["tuple", "list", "size", "set", "frozenset", "slice", "range"]
_TORCH_CONSTANTS = (torch.dtype, torch.layout, torch.memory_format, torch.qscheme)
_SEQUENCES: dict[_Kind, Callable[..., Any]] = {
    "tuple": tuple,
    "size": torch.Size,
    "frozenset": frozenset,
    "slice": slice,
    "range": range,
    "list": list,
    "set": set,
}
_KINDS: dict[Any, _Kind] = {type_: kind for kind, type_ in _SEQUENCES.items()}
_MAX_DEPTH = 64


@dataclass(frozen=True)
class PackedValues:
    """Values as data. The storages are views of the live memory: write them before the values change."""

    entries: dict[str, ValueEntry]
    storages: dict[str, torch.Tensor]
    """Flat uint8 tensors on the CPU, by the name that the entries use."""
    notes: tuple[str, ...]
    """What was not kept exactly, in words for a person."""
    missing: tuple[str, ...] = ()
    """What was not kept at all: loading these values fails."""
    origins: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By name, the address of the memory that a storage was read from, and the offset in it."""


def pack_values(
    values: Mapping[str, Any], *, size_cap: int = DEFAULT_SIZE_CAP, code: Mapping[int, str] = _NO_CODE
) -> PackedValues:
    """Describe values. Storages above `size_cap` bytes in total become recipes, the largest first.

    Integers and booleans are kept exactly whatever their size. Objects under several names stay one object,
    tensors over one memory keep sharing it. `code` has the paths of the user's classes and objects by
    identity, as the bundle's source or an import finds them.
    """
    with plain_torch():
        packer = Packer(values, StorageTable(), lambda value: code.get(id(value)))
        entries = {name: packer.pack(value, name) for name, value in values.items()}
        storages, notes = packer.storages.finish(size_cap)
        origins = packer.storages.origins()
    return PackedValues(entries, storages, (*packer.all_notes(), *notes), tuple(packer.missing), origins)


def describe_values(
    values: Mapping[str, Any], storages: StorageTable, name_of_code: Callable[[Any], str]
) -> dict[str, ValueEntry]:
    """Return the descriptions alone; every storage is added to the table. No reader can find code by them.

    `name_of_code` tells apart the objects that have no description: an address does not, it is reused.
    For callers outside all modes of torch: leaving the modes takes half the time of a description.
    """
    with torch.no_grad():
        packer = Packer(values, storages, name_of_code)
        return {name: packer.pack(value, name) for name, value in values.items()}


def unpack_values(
    entries: Mapping[str, ValueEntry],
    load_storage: LoadStorage,
    *,
    device_map: DeviceMap = available_device,
    find_code: FindCode | None = None,
) -> dict[str, Any]:
    """Rebuild the values. Tensors own what `load_storage` gives for a name: a private uint8 CPU tensor.

    `device_map` says where the tensors of a device go; by default, to the CPU where the device is missing
    (`device_notes` says which). A value that could not be kept raises `CannotSerialise` and is named.
    `find_code` returns what the path of a user's class or object stands for, given the values so far; without
    it no code is looked for.
    """
    with plain_torch():
        values: dict[str, Any] = {}
        find = None if find_code is None else lambda path: find_code(path, values)
        unpacker = Unpacker(StorageLoader(load_storage, device_map), find)
        for name, entry in entries.items():
            unpacker.current = name
            values[name] = unpacker.unpack(entry)
        unpacker.storages.free_again()
    return values


def device_notes(entries: Mapping[str, ValueEntry]) -> tuple[str, ...]:
    """Return which devices of the values are replaced by others here, in words for a person."""
    placed = (StorageEntry, GeneratorEntry, ZeroTensorEntry)
    wanted = sorted({part.device for part in parts_of(dict(entries)) if isinstance(part, placed)})
    moves = [(name, available_device(parse_device(name))) for name in wanted]
    return tuple(
        f"values of {name} are loaded on {device}" for name, device in moves if device != parse_device(name)
    )


class Packer:
    """One walk over all values: remembers the objects it has seen, so that identity survives."""

    def __init__(
        self, values: Mapping[str, Any], storages: StorageTable, code: Callable[[Any], str | None]
    ) -> None:
        self.storages = storages
        self.path_of_code = code
        """The path of a class or object of the user, None where it has none."""
        self._values = {id(value) for value in values.values()}
        self.notes: list[str] = []
        self.missing: list[str] = []
        self._left_out: dict[str, list[str]] = {}
        self._histories: dict[str, list[tuple[str, bool]]] = {}
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []  # an id is valid only while its object lives
        self._depth = 0

    def all_notes(self) -> tuple[str, ...]:
        notes = list(self.notes)
        notes += [f"the {what} of {', '.join(names)} is not kept" for what, names in self._left_out.items()]
        for users in self._histories.values():
            if len(users) > 1 and not all(leaf for _, leaf in users):
                names = ", ".join(name for name, _ in users)
                notes.append(
                    f"{names} share memory and may share a gradient history; only the memory is kept"
                )
        return tuple(notes)

    def pack(self, value: Any, where: str) -> ValueEntry:
        self._depth += 1
        try:
            if self._depth > _MAX_DEPTH:
                raise NotKept("it is nested too deeply, or contains itself")
            scalar = _SCALARS.get(type(value))
            return self._pack(value, where) if scalar is None else scalar(value)
        except Exception as exc:
            # An object of an unknown kind can raise anything; the other values are kept.
            reason = str(exc) if isinstance(exc, NotKept) else in_a_line(exc)
            kind = class_path(type(value))
            self.missing.append(f"{where} ({kind})")
            self.notes.append(f"{where}: a {kind} is not kept: {reason}")
            return OpaqueEntry(kind, reason)
        finally:
            self._depth -= 1

    def is_view(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a view without gradients of one that is not among the values."""
        base = base_without_grad(tensor)
        return base is not None and id(base) not in self._values

    def _pack(self, value: Any, where: str) -> ValueEntry:
        match value:
            case torch.SymInt() | torch.SymFloat() | torch.SymBool():
                return self._pack_symbol(value, where)
            case torch.device():
                return DeviceEntry(str(value))
            case tuple() | slice() | range() | frozenset():
                if type(value) not in _KINDS:
                    return self._pack_code(value, "named tuples and other subclasses of tuple are not kept")
                return self._pack_sequence(value, where)
        if isinstance(value, _TORCH_CONSTANTS):
            return TorchConstantEntry(str(value).removeprefix("torch."))
        if id(value) in self._numbers:
            return SameEntry(self._numbers[id(value)])
        self._alive.append(value)
        number = len(self._alive) - 1
        entry = self._pack_object(value, where, number)
        self._numbers[id(value)] = number  # numbered only now: no value contains itself
        return entry

    def _pack_object(self, value: Any, where: str, number: int) -> ValueEntry:
        """Pack a value with an identity."""
        if isinstance(value, torch.Tensor):
            entry = pack_tensor(value, number, where, self)
            self._note_left_out(value, entry, where)
            return entry
        if isinstance(value, torch.Generator):
            state = value.get_state().cpu().numpy().tobytes()
            return GeneratorEntry(number, str(value.device), value.initial_seed(), state)
        if type(value) is dict:
            items = [
                (self.pack(key, f"{where}.key"), self.pack(item, f"{where}[{key!r}]"))
                for key, item in value.items()
            ]
            return DictEntry(number, tuple(items))
        if type(value) in _KINDS:
            return self._pack_sequence(value, where, number)
        distributed = pack_distributed(value, number)
        if distributed is not None:
            return distributed
        return self._pack_code(
            value, "only tensors, numbers, strings and containers of them are kept", number
        )

    def _pack_code(self, value: Any, reason: str, number: int = -1) -> SourceEntry:
        """Pack an object that the source in the bundle defines."""
        path = self.path_of_code(value)
        if path is None:
            raise NotKept(reason)
        return SourceEntry(number, path)

    def _pack_sequence(self, value: Any, where: str, number: int = -1) -> SequenceEntry:
        parts = (value.start, value.stop, value.step) if isinstance(value, slice | range) else value
        items = tuple(self.pack(item, f"{where}[{index}]") for index, item in enumerate(parts))
        return SequenceEntry(_KINDS[type(value)], items, number)

    def _pack_symbol(self, value: Any, where: str) -> ValueEntry:
        known = hint(value)
        if known is None:
            raise NotKept("it is a symbolic number whose value depends on data")
        self.notes.append(f"{where}: the symbolic number {expression(value)} is kept as its value {known}")
        match value:
            case torch.SymFloat():
                return SymbolEntry(repr(float(known)), expression(value), "float")
            case torch.SymBool():
                return SymbolEntry(bool(known), expression(value), "bool")
        return SymbolEntry(int(known), expression(value))

    def _note_left_out(self, tensor: torch.Tensor, entry: ValueEntry, where: str) -> None:
        left_out = {
            # A graph that reads a gradient has it as an input of its own.
            ".grad": tensor.is_leaf and tensor.grad is not None,
            "gradient hook": has_gradient_hooks(tensor),
        }
        for what in (what for what, present in left_out.items() if present):
            self._left_out.setdefault(what, []).append(where)
        if isinstance(entry, StridedEntry) and entry.requires_grad:
            self._histories.setdefault(entry.storage.name, []).append((where, entry.leaf))


class Unpacker:
    """One walk over all entries, in the order in which they were packed."""

    def __init__(self, storages: StorageLoader, find_code: Callable[[str], Any] | None = None) -> None:
        self.storages = storages
        self.current = ""
        self._find_code = find_code
        self._objects: dict[int, Any] = {}

    def unpack(self, entry: ValueEntry) -> Any:
        try:
            value = self._unpack(entry)
        except (ValueError, struct.error) as error:
            raise damaged(f"the manifest has a value that is none: {error}") from error
        number = getattr(entry, "number", -1)
        if number >= 0:
            self._objects[number] = value
        return value

    def _unpack(self, entry: ValueEntry) -> Any:
        if isinstance(entry, TensorTraits):
            return rebuild_tensor(entry, self)
        match entry:
            case SameEntry(number=number):
                if number not in self._objects:
                    raise damaged(f"{self.current} is the same as a value that is missing")
                return self._objects[number]
            case SequenceEntry(type=kind, items=items):
                parts = [self.unpack(item) for item in items]
                return self._made(kind, *(parts if kind in ("slice", "range") else [parts]))
            case DictEntry(items=pairs):
                return self._made("dict", [(self.unpack(key), self.unpack(item)) for key, item in pairs])
            case DeviceEntry(name=name):
                return parse_device(name)
            case TorchConstantEntry(name=name):
                return find_constant(name, *_TORCH_CONSTANTS)
            case GeneratorEntry():
                return self._unpack_generator(entry)
            case MeshEntry() | GroupEntry():
                return build_distributed(entry)
            case SourceEntry(name=path):
                return self.find_code(path)
            case OpaqueEntry(type=type_, reason=reason):
                raise CannotSerialise(
                    f"{self.current} holds a {type_}, which the bundle could not keep: {reason}",
                    next_step="capture again without it, or give the value by hand",
                )
            case NoneEntry():
                return None
            case EllipsisEntry():
                return ...
            case BoolEntry(value=value) | BytesEntry(value=value):
                return value
            case IntEntry(value=value):
                return int(value, 16) if isinstance(value, str) else value
            case FloatEntry(value=value):
                return _text_to_float(value)
            case ComplexEntry(real=real, imag=imag):
                return complex(_text_to_float(real), _text_to_float(imag))
            case StrEntry(value=value, escaped=escaped):
                return value.encode("ascii").decode("unicode_escape") if escaped else value
            case SymbolEntry(value=value, type=type_):
                return float(value) if type_ == "float" else value
        raise HarnessError(f"no reader for {type(entry).__name__}")

    def find_code(self, path: str) -> Any:
        """Return the class or object of the user at a path, where the reader trusts it."""
        if self._find_code is None:
            raise BundleError(
                f"{self.current} needs {path}, which is code of the user", next_step="load the whole bundle"
            )
        return self._find_code(path)

    def _made(self, kind: _Kind | Literal["dict"], *parts: Any) -> Any:
        try:
            return dict(*parts) if kind == "dict" else _SEQUENCES[kind](*parts)
        except (TypeError, ValueError) as error:
            raise damaged(f"{self.current} holds an impossible {kind}") from error

    def _unpack_generator(self, entry: GeneratorEntry) -> torch.Generator:
        device = self.storages.device(entry.device)
        generator = torch.Generator(device)
        generator.manual_seed(entry.seed)
        if device.type == parse_device(entry.device).type:
            try:
                generator.set_state(torch.frombuffer(bytearray(entry.state), dtype=torch.uint8))
            except (RuntimeError, ValueError) as error:
                raise damaged(f"the generator state of {self.current} is damaged") from error
        return generator


# Scalars: exact in JSON, which by itself has no NaN, no big integers and no bytes.


def _pack_string(value: str) -> StrEntry:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return StrEntry(value.encode("unicode_escape").decode("ascii"), escaped=True)
    return StrEntry(value)


# By exact types: an enum or a numpy number is also an int or float, and would lose its type.
_SCALARS: dict[type, Callable[[Any], ValueEntry]] = {
    type(None): lambda value: NoneEntry(),
    type(...): lambda value: EllipsisEntry(),
    bool: BoolEntry,
    int: lambda value: IntEntry(value if -(1 << 63) <= value < 1 << 63 else hex(value)),
    float: lambda value: FloatEntry(_float_to_text(value)),
    complex: lambda value: ComplexEntry(_float_to_text(value.real), _float_to_text(value.imag)),
    str: _pack_string,
    bytes: BytesEntry,
}


def _float_to_text(value: float) -> str:
    """Write a float exactly: the shortest decimal, and for NaN its bits (sign and payload)."""
    return f"nan:{struct.pack('>d', value).hex()}" if math.isnan(value) else repr(value)


def _text_to_float(text: str) -> float:
    if not text.startswith("nan:"):
        return float(text)
    if len(text) != len("nan:") + 16:
        raise ValueError(f"{text!r} is no NaN")
    return float(struct.unpack(">d", bytes.fromhex(text[4:]))[0])
