"""What is in a bundle, for a person: a few facts, the inputs as a table, what was not kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from torchrepro.bundle.manifest import (
    Manifest,
    NestedStridedEntry,
    SparseEntry,
    StridedEntry,
    SubclassEntry,
    ValueEntry,
    ZeroTensorEntry,
)
from torchrepro.bundle.storage_entries import RandomFloats, RandomIntegers
from torchrepro.nouns.repro import CustomOpEntry, UserSetting


@dataclass(frozen=True, slots=True)
class InputLine:
    """One input in words."""

    name: str
    kind: str
    shape: str = ""
    dtype: str = ""
    device: str = ""
    remarks: str = ""


@dataclass(frozen=True, slots=True)
class Description:
    facts: dict[str, str]
    inputs: tuple[InputLine, ...]
    notes: tuple[str, ...]
    verdict: dict[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data


def describe_bundle(manifest: Manifest) -> Description:
    environment, ambient = manifest.environment, manifest.ambient
    facts = {
        "failure": str(manifest.expected) if manifest.expected else "none recorded",
        "incomplete": "; ".join(f"it lacks {part}" for part in manifest.missing),
        "taken": f"{manifest.place.value.replace('_', ' ')}, {manifest.created}",
        "compiler": str(manifest.compiler),
        "graph": f"{manifest.ops} ops, {manifest.inputs} inputs, {manifest.elements} elements",
        "symbols": ", ".join(f"{symbol.name}={symbol.hint}" for symbol in manifest.symbols),
        "state": ", ".join(f"{name}={value}" for name, value in ambient.non_default.items()),
        "versions": f"torch {environment.torch}, Python {environment.python}, {environment.platform}",
        "machine": ", ".join(part for part in (environment.cpu, *environment.gpus) if part),
        "needs trust": ", ".join(manifest.needs_trust),
        "operators": "; ".join(_operator(entry) for entry in manifest.custom_ops),
        "code settings": "; ".join(map(_setting, manifest.user_settings)),
        "kernels": ", ".join(f"{name} (Triton, source in the bundle)" for name in manifest.kernels),
    }
    # The number of inputs is what the manifest says; how many there are is what it describes.
    inputs = tuple(
        _input_line(str(index), manifest.values[f"input.{index}"])
        for index in range(min(manifest.inputs, len(manifest.values)))
        if f"input.{index}" in manifest.values
    )
    return Description(
        facts={name: value for name, value in facts.items() if value},
        inputs=inputs,
        notes=manifest.notes,
        verdict=manifest.verdict,
    )


def _setting(entry: UserSetting) -> str:
    """Return a setting that is code of the user, and where the code comes from."""
    places = [entry.reference, "source in the bundle" if entry.source else ""]
    return f"{entry}={entry.shown} ({', '.join(place for place in places if place)})"


def _operator(entry: CustomOpEntry) -> str:
    """Return an operator that does not come with torch, and where it comes from."""
    places = [entry.library or entry.module, entry.file, "source in the bundle" if entry.in_source else ""]
    return f"{entry.schema} from {', '.join(place for place in places if place) or 'unknown'}"


def _input_line(name: str, entry: ValueEntry) -> InputLine:
    match entry:
        case StridedEntry():
            return InputLine(
                name,
                "parameter" if entry.parameter else "tensor",
                _shape(entry.size),
                entry.dtype,
                entry.storage.device,
                ", ".join(_remarks(entry)),
            )
        case ZeroTensorEntry():
            return InputLine(name, "zero tensor", _shape(entry.size), entry.dtype, entry.device)
        case SparseEntry():
            return InputLine(name, entry.layout, _shape(entry.size))
        case SubclassEntry():
            return InputLine(name, entry.type, _shape(entry.size))
        case NestedStridedEntry():
            return InputLine(name, "nested tensor")
    kind = type(entry).__name__.removesuffix("Entry").lower()
    return InputLine(name, kind, remarks=str(getattr(entry, "value", "")))


def _shape(size: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, size))}]"


def _remarks(entry: StridedEntry) -> list[str]:
    remarks = ["needs grad"] if entry.requires_grad else []
    remarks += [] if entry.leaf else ["not a leaf"]
    if isinstance(entry.storage.recipe, RandomFloats | RandomIntegers):
        remarks.append("data not kept: generated")
    if not _is_contiguous(entry):
        remarks.append(f"stride {_shape(entry.stride)}")
    return remarks


def _is_contiguous(entry: StridedEntry) -> bool:
    expected = 1
    # Not strict: a damaged manifest is described too.
    for size, step in zip(reversed(entry.size), reversed(entry.stride), strict=False):
        if size != 1 and step != expected:
            return False
        expected *= size
    return True
