"""Write a bundle: from a repro, or from one that was written ahead of a call and gets its verdict now.

A bundle appears whole under its name, or not at all. The script is the last thing in it: where writing the
script fails, the bundle says so and is written without it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch

from torchrepro.bundle.archive import Content, new_run_id, write_bundle_files
from torchrepro.bundle.manifest import CollectiveEntry, Manifest, SameEntry, TensorTraits, encode_manifest
from torchrepro.bundle.process_groups import needed_groups
from torchrepro.bundle.read import (
    GRAPH,
    OPERATORS,
    SCRIPT,
    SOURCE,
    TENSORS,
    VALUES,
    open_bundle_files,
    text_of,
)
from torchrepro.bundle.read import manifest_of as read_manifest_of
from torchrepro.bundle.storage_file import open_storages, write_storages
from torchrepro.bundle.values import DEFAULT_SIZE_CAP, PackedValues, pack_values, unpack_values
from torchrepro.graph_text.printer import GraphText
from torchrepro.judge.compare import tensors_in
from torchrepro.nouns.repro import Environment, Repro
from torchrepro.nouns.verdict import Signature, Verdict, as_data
from torchrepro.user_code.graph_source import SOURCE_PREFIX, write_with_source
from torchrepro.user_code.operators import operators_of


def save_bundle(
    repro: Repro,
    path: Path,
    *,
    verdict: Verdict | None = None,
    size_cap: int = DEFAULT_SIZE_CAP,
    run_id: str = "",
    script: bool = True,
    seal: bool = True,
) -> Path:
    """Write a bundle: a directory, or a zip where the name ends so. Never over something that exists.

    Without its script, which only people need, it takes half the time. Without its seal (`archive.py`),
    which costs a second for each gigabyte, only the process that it is meant for should read it.
    """
    members = bundle_members(repro, verdict, size_cap=size_cap, run_id=run_id, script=script)
    return write_bundle_files(path, members, seal=seal, sign=not repro.stranger)


def bundle_members(
    repro: Repro,
    verdict: Verdict | None = None,
    *,
    size_cap: int = DEFAULT_SIZE_CAP,
    run_id: str = "",
    script: bool = True,
) -> dict[str, Content]:
    """Return the files of a bundle by name."""
    written, repro = write_with_source(repro)
    values = values_of(repro, written)
    packed = pack_values(values, size_cap=size_cap, code=written.code)
    manifest = manifest_of(repro, written, packed, verdict, run_id=run_id)
    if not script:
        return members_of(written, packed, manifest)
    manifest, text, kept = _with_script(manifest, written.text, verdict, written.source)
    return {**members_of(written, packed, manifest), SCRIPT: text, **_values_for_script(kept, values)}


def _with_script(
    manifest: Manifest, graph_text: str, verdict: Verdict | None, source: str
) -> tuple[Manifest, bytes, list[str]]:
    """Return the script and the names of the values that it cannot make by itself.

    Where writing it fails, the manifest has a note and the script says so: a defect of the script writer must
    not cost the user the bundle.
    """
    from torchrepro.script import standalone

    try:
        text = standalone.standalone_script(manifest, graph_text, verdict, source)
        return manifest, text.encode(), standalone.kept_apart(manifest)
    except Exception as exc:
        reason = f"repro.py could not be written ({type(exc).__name__}: {exc})"
        manifest = msgspec.structs.replace(manifest, notes=(*manifest.notes, reason))
        return manifest, standalone.no_script(reason).encode(), []


def members_of(written: GraphText, packed: PackedValues, manifest: Manifest) -> dict[str, Content]:
    """Return the files from which a bundle can be read again: all but the script."""
    files: dict[str, Content] = {
        "manifest.json": encode_manifest(manifest),
        GRAPH: written.text.encode(),
        TENSORS: lambda path: write_storages(path, packed.storages),
    }
    if written.source:
        files[SOURCE] = written.source.encode()
    operators = operators_of(written.custom_ops, written.kernels)
    if operators.text:
        files[OPERATORS] = operators.text.encode()
    return files


def values_of(repro: Repro, written: GraphText) -> dict[str, Any]:
    """Return everything in a repro that is a value, by its name in the manifest."""
    source = {name: value for name, value in written.constants.items() if name.startswith(SOURCE_PREFIX)}
    return {
        # First: the source is run on them, and the classes of other values are defined in it.
        **{f"constant.{name}": value for name, value in source.items()},
        **{f"input.{index}": value for index, value in enumerate(repro.inputs)},
        **{
            f"earlier.{call}.input.{index}": value
            for call, inputs in enumerate(repro.earlier)
            for index, value in enumerate(inputs)
        },
        **{f"constant.{name}": value for name, value in written.constants.items()},
        **{
            f"collective.{number}.{part}": getattr(one, part)
            for number, one in enumerate(repro.collectives)
            for part in ("given", "returned")
        },
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
    """Return the manifest of a repro whose graph and values have been turned into data."""
    left_out = tuple(
        f"the setting {name} is neither data nor code that can be kept, and was left out"
        for name in repro.ambient.left_out
    )
    operators = operators_of(written.custom_ops, written.kernels)
    return Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        run_id=run_id or new_run_id(),
        place=repro.place,
        compiler=repro.compiler,
        ambient=replace(repro.ambient, rng={}),
        environment=Environment.capture(),
        backward=repro.backward,
        strict=repro.strict,
        tolerance=repro.tolerance,
        symbols=repro.symbols,
        inputs=len(repro.inputs),
        earlier=len(repro.earlier),
        values=packed.entries,
        needs_trust=written.needs_trust,
        custom_ops=operators.entries,
        kernels=tuple(written.kernels),
        user_settings=written.settings,
        ops=repro.ops,
        elements=sum(tensor.numel() for _, tensor in tensors_in(repro.inputs)),
        expected=repro.expected,
        origin=repro.origin,
        groups=repro.groups or needed_groups(repro.graph, repro.inputs),
        collectives=tuple(CollectiveEntry(one.op, one.arguments) for one in repro.collectives),
        verdict=None if verdict is None else as_data(verdict.to_dict()),
        notes=tuple(
            dict.fromkeys((*repro.notes, *packed.notes, *left_out, *written.notes, *operators.notes))
        ),
    )


def finish_bundle(unfinished: Path, target: Path, verdict: Verdict, *, earlier: int = 0) -> Path:
    """Give a bundle that was written ahead of a call its verdict and script, under its final name.

    The tensors' bytes are kept unchanged: that needs neither the device they came from, which may just have
    failed, nor the memory to hold them. `earlier` calls of the same kind came before the failing one.
    """
    with open_bundle_files(unfinished) as files:
        manifest = _with_verdict(read_manifest_of(files), verdict, earlier)
        graph_text = text_of(files, GRAPH)
        source = text_of(files, SOURCE) if SOURCE in files else ""
        members: dict[str, Content] = {
            name: _linked(unfinished / name) for name in files.names if name not in ("manifest.json", SCRIPT)
        }
    manifest, members[SCRIPT], kept = _with_script(manifest, graph_text, verdict, source)
    members["manifest.json"] = encode_manifest(manifest)
    if kept:
        wanted, storages = {name: manifest.values[name] for name in kept}, open_storages(unfinished / TENSORS)
        # On the CPU, wherever they were: that device may just have failed.
        values = unpack_values(wanted, storages.__getitem__, device_map=lambda device: torch.device("cpu"))
        members |= _values_for_script(kept, values)
    return write_bundle_files(target, members)


def _with_verdict(manifest: Manifest, verdict: Verdict, earlier: int) -> Manifest:
    values = dict(manifest.values)
    for call in range(earlier):
        for index in range(manifest.inputs):
            entry = manifest.values[f"input.{index}"]
            again = SameEntry(entry.number) if isinstance(entry, TensorTraits) else entry
            values[f"earlier.{call}.input.{index}"] = again
    return msgspec.structs.replace(
        manifest,
        expected=Signature.of(verdict),
        verdict=as_data(verdict.to_dict()),
        earlier=earlier,
        values=values,
    )


def _linked(source: Path) -> Callable[[Path], None]:
    """Return a writer that links to the same file, or copies it where the file system has no links."""

    def write(path: Path) -> None:
        try:
            os.link(source, path)
        except OSError:
            shutil.copyfile(source, path)

    return write


def _values_for_script(names: Sequence[str], values: Mapping[str, Any]) -> dict[str, Content]:
    """Return the file with these values, where there are any."""
    kept = {
        name: value.detach() if isinstance(value := values[name], torch.Tensor) else value for name in names
    }
    return {VALUES: lambda path: torch.save(kept, path)} if kept else {}
