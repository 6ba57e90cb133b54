"""From a repro to a bundle: written whole under its name, or not at all."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchrepro.bundle.archive import Content, new_run_id, write_bundle_files
from torchrepro.bundle.manifest import Manifest, SymbolEntry, encode_manifest
from torchrepro.bundle.read import GRAPH, OPERATORS, SCRIPT, SOURCE, TENSORS, VALUES
from torchrepro.bundle.storage_file import write_storages
from torchrepro.bundle.values import DEFAULT_SIZE_CAP, PackedValues, pack_values
from torchrepro.graph_text.printer import GraphText
from torchrepro.judge.leaves import tensors_in
from torchrepro.nouns.environment import Environment
from torchrepro.nouns.plain import as_data
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict
from torchrepro.script.bundle_script import standalone_script, values_for_script
from torchrepro.user_code.graph_source import write_with_source
from torchrepro.user_code.operators import operators_in


def save_bundle(
    repro: Repro,
    path: Path,
    *,
    verdict: Verdict | None = None,
    size_cap: int = DEFAULT_SIZE_CAP,
    run_id: str = "",
) -> Path:
    """Write a bundle: a directory, or a zip where the name ends so. Never over something that exists."""
    written, compiler = write_with_source(repro)
    repro = replace(repro, compiler=compiler)
    values = values_of(repro, written)
    packed = pack_values(values, size_cap=size_cap)
    manifest = manifest_of(repro, written, packed, verdict, run_id=run_id)
    files: dict[str, Content] = {
        **members_of(written, packed, manifest),
        SCRIPT: standalone_script(manifest, written.text, verdict, written.source).encode(),
    }
    beside = values_for_script(manifest, values)
    if beside is not None:
        files[VALUES] = beside
    return write_bundle_files(path, files)


def members_of(written: GraphText, packed: PackedValues, manifest: Manifest) -> dict[str, Content]:
    """The files of a bundle from which it can be read again: all but the script."""
    files: dict[str, Content] = {
        "manifest.json": encode_manifest(manifest),
        GRAPH: written.text.encode(),
        TENSORS: lambda path: write_storages(path, packed.storages),
    }
    if written.source:
        files[SOURCE] = written.source.encode()
    if operators_in(written).text:
        files[OPERATORS] = operators_in(written).text.encode()
    return files


def values_of(repro: Repro, written: GraphText) -> dict[str, Any]:
    """Everything in a repro that is a value, by the name that the manifest gives it."""
    return {
        **{f"input.{index}": value for index, value in enumerate(repro.inputs)},
        **{
            f"earlier.{call}.input.{index}": value
            for call, inputs in enumerate(repro.earlier)
            for index, value in enumerate(inputs)
        },
        **{f"constant.{name}": value for name, value in written.constants.items()},
        **{f"rng.{device}": state for device, state in repro.ambient.rng.items()},
    }


def manifest_of(
    repro: Repro,
    written: GraphText,
    packed: PackedValues,
    verdict: Verdict | None = None,
    *,
    run_id: str = "",
) -> Manifest:
    """The manifest of a repro whose graph and values have been turned into data."""
    left_out = tuple(f"the setting {name} is not data and was left out" for name in repro.ambient.left_out)
    return Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        run_id=run_id or new_run_id(),
        place=repro.place,
        compiler=repro.compiler,
        ambient=_without_rng(repro),
        environment=Environment.capture(),
        backward=repro.backward,
        strict=repro.strict,
        tolerance=repro.tolerance,
        symbols=tuple(
            SymbolEntry(symbol.name, symbol.hint, symbol.lower, symbol.upper, symbol.unbacked)
            for symbol in repro.symbols
        ),
        inputs=len(repro.inputs),
        earlier=len(repro.earlier),
        values=packed.entries,
        needs_trust=written.needs_trust,
        custom_ops=operators_in(written).entries,
        kernels=tuple(written.kernels),
        ops=repro.ops,
        elements=sum(tensor.numel() for _, tensor in tensors_in(repro.inputs)),
        expected=repro.expected,
        origin=repro.origin,
        verdict=None if verdict is None else as_data(verdict.to_dict()),
        notes=tuple(
            dict.fromkeys(
                (*repro.notes, *packed.notes, *left_out, *written.notes, *operators_in(written).notes)
            )
        ),
    )


def _without_rng(repro: Repro) -> Any:
    return replace(repro.ambient, rng={})
