"""Numbers, strings and the like: exact in JSON, which by itself has no NaN, no big integers and no bytes."""

from __future__ import annotations

import math
import struct
from typing import Any

from torchrepro.bundle.entries import (
    BoolEntry,
    BytesEntry,
    ComplexEntry,
    EllipsisEntry,
    FloatEntry,
    IntEntry,
    NoneEntry,
    StrEntry,
    SymbolEntry,
    ValueEntry,
)
from torchrepro.nouns.errors import BundleError, HarnessError


def pack_scalar(value: Any) -> ValueEntry | None:
    """The entry of a value of exactly one of the built-in scalar types; None for anything else."""
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
        return _pack_string(value)
    if kind is bytes:
        return BytesEntry(value)
    return None


def unpack_scalar(entry: ValueEntry) -> Any:
    """The value of an entry that `pack_scalar` made, or of a symbolic number."""
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


def _pack_string(value: str) -> StrEntry:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return StrEntry(value.encode("unicode_escape").decode("ascii"), escaped=True)
    return StrEntry(value)


def float_to_text(value: float) -> str:
    """Exact: the shortest decimal, and for NaN its bits (sign and payload)."""
    return f"nan:{struct.pack('>d', value).hex()}" if math.isnan(value) else repr(value)


def text_to_float(text: str) -> float:
    if text.startswith("nan:"):
        try:
            (value,) = struct.unpack(">d", bytes.fromhex(text[4:]))
        except struct.error as error:
            raise ValueError(f"{text!r} is no NaN") from error
        return float(value)
    return float(text)
