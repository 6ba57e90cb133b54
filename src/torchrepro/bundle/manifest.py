"""The manifest of a bundle: everything about a repro that is neither graph text nor bytes of tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from torchrepro.bundle.entries import DeviceEntry, ValueEntry, parts_of
from torchrepro.nouns.errors import BundleError
from torchrepro.nouns.repro import Ambient, Compiler, CustomOpEntry, Environment, Origin, Place, Symbol
from torchrepro.nouns.verdict import Signature

FORMAT = 1
"""Raised whenever a reader of the former version would misunderstand a bundle."""

# Settings name programs to run (`cpp.cxx`) and files to read. A stranger's bundle may set numbers, switches
# and plain words, nothing else.
_UNSAFE_NAMES = re.compile(
    r"cxx|flag|dir|path|file|command|compiler_bin|include|library|(?<![a-z])log|url|remote|host"
)
_SETTING_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_PLAIN_WORD = re.compile(r"[A-Za-z0-9_.+\-]{0,64}")


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
    ops: int = 0
    elements: int = 0
    """Elements of all input tensors together."""
    expected: Signature | None = None
    verdict: dict[str, Any] | None = None
    """The verdict with its evidence, for a reader."""
    origin: Origin | None = None
    """Which of the graphs of a program it is."""
    notes: tuple[str, ...] = ()


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
    except msgspec.DecodeError as exc:
        raise BundleError(
            f"{where}: manifest.json is damaged ({exc})", next_step="take the bundle again"
        ) from exc
    raise BundleError(
        f"{where}: the bundle has format {version}, this torchrepro reads up to {FORMAT}",
        next_step="upgrade torchrepro (pip install -U torchrepro)",
    )


def safe_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that a stranger may choose for us, and the names of those that were refused."""
    safe = {name: value for name, value in settings.items() if _is_safe(name, value)}
    return safe, [name for name in settings if name not in safe]


def _is_safe(name: str, value: Any) -> bool:
    if _UNSAFE_NAMES.search(name) or not _SETTING_NAME.fullmatch(name):
        return False
    if isinstance(value, list):
        return all(_is_safe(name, item) for item in value)
    if isinstance(value, dict):
        return all(_is_safe(str(key), item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float) or bool(_PLAIN_WORD.fullmatch(str(value)))


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
