"""Write a bundle: from a repro, or from one that was written ahead of a call and gets its verdict now.

A bundle appears whole under its name, or not at all. Manifest, graph and tensors come first; whatever else
cannot be made or written becomes a note in the manifest. What is missing of the graph or of the values is
named in `missing`: such a bundle can be shown, but not be run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch

from torchrepro.bundle.archive import Content, new_run_id, write_bundle_files
from torchrepro.bundle.manifest import (
    CollectiveEntry,
    Manifest,
    SameEntry,
    TensorTraits,
    ValueEntry,
    encode_manifest,
)
from torchrepro.bundle.process_groups import needed_groups
from torchrepro.bundle.read import (
    GRAPH,
    MANIFEST,
    OPERATORS,
    SCRIPT,
    SOURCE,
    TENSORS,
    VALUES,
    manifest_of,
    open_bundle_files,
    text_of,
)
from torchrepro.bundle.storage_file import open_storages, write_storages
from torchrepro.bundle.values import DEFAULT_SIZE_CAP, PackedValues, pack_values, unpack_values
from torchrepro.graph_text.printer import GraphText, write_graph
from torchrepro.judge.compare import tensors_in
from torchrepro.nouns.environment import Environment
from torchrepro.nouns.errors import TorchReproError, in_a_line
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Signature, Verdict, as_data
from torchrepro.torch_api.tensors import hint, is_fake
from torchrepro.user_code.graph_source import SOURCE_PREFIX, without_code, write_with_source
from torchrepro.user_code.operators import Operators, operators_of


@dataclass(frozen=True)
class Members:
    """The files of a bundle by name."""

    manifest: Manifest
    files: Mapping[str, Content]
    """What the bundle is read from, without the manifest."""
    optional: Mapping[str, Content] = field(default_factory=dict)
    """What only people need."""

    def write(self, path: Path, *, seal: bool = True, sign: bool = True) -> Path:
        """Write them (`write_bundle_files`); the manifest notes what had to be left out."""

        def amended(missing: Mapping[str, str]) -> Mapping[str, Content]:
            reasons = (f"{name} could not be written ({reason})" for name, reason in missing.items())
            return {MANIFEST: encode_manifest(with_notes(self.manifest, *reasons))}

        files = {MANIFEST: encode_manifest(self.manifest), **self.files}
        return write_bundle_files(path, files, optional=self.optional, amended=amended, seal=seal, sign=sign)


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
    return members.write(path, seal=seal, sign=not repro.stranger)


def bundle_members(
    repro: Repro,
    verdict: Verdict | None = None,
    *,
    size_cap: int = DEFAULT_SIZE_CAP,
    run_id: str = "",
    script: bool = True,
    written: GraphText | None = None,
) -> Members:
    """Return the files of a bundle. `written` is the graph's text, where that is known or incomplete."""
    if written is None:
        written, repro = write_with_source(repro)
    live = values_of(repro, written)
    packed = pack_values(live, size_cap=size_cap, code=written.code)
    members = members_of(repro, written, packed, verdict, run_id=run_id)
    if not script:
        return members

    def values(wanted: Mapping[str, ValueEntry]) -> dict[str, Any]:
        # A fake tensor cannot be saved: its recipe is followed, as a reader would.
        fake = {name: entry for name, entry in wanted.items() if _any_fake(live[name])}
        made = unpack_values(fake, lambda name: packed.storages[name].clone())
        return {name: made.get(name, live[name]) for name in wanted}

    return _with_script(members, written.text, verdict, written.source, values)


def write_what_can_be(repro: Repro) -> tuple[GraphText, Repro]:
    """As `write_with_source`; where that is impossible, an incomplete text."""
    try:
        return write_with_source(repro)
    except Exception as exc:
        written = write_graph(repro.graph, incomplete=True)
        missing = written.missing or (f"code of the user: {in_a_line(exc)}",)
        return replace(written, missing=missing), without_code(repro)


def members_of(
    repro: Repro,
    written: GraphText,
    packed: PackedValues,
    verdict: Verdict | None = None,
    *,
    run_id: str = "",
) -> Members:
    """Return the files from which a bundle can be read again, for a repro that has been turned into data."""
    files: dict[str, Content] = {
        GRAPH: written.text.encode(),
        TENSORS: lambda path: write_storages(path, packed.storages),
    }
    if written.source:
        files[SOURCE] = written.source.encode()
    try:
        operators = operators_of(written.custom_ops, written.kernels)
    except Exception as exc:
        operators = Operators(notes=(f"the custom operators could not be described ({in_a_line(exc)})",))
    if operators.text:
        files[OPERATORS] = operators.text.encode()
    manifest = _manifest(repro, written, packed, verdict, run_id, operators)
    return Members(manifest, files)


def _with_script(
    members: Members,
    graph_text: str,
    verdict: Verdict | None,
    source: str,
    values: Callable[[Mapping[str, ValueEntry]], dict[str, Any]],
) -> Members:
    """Add the script, and the values that it cannot make by itself; a note if it cannot be written."""
    from torchrepro.script import standalone

    manifest = members.manifest
    try:
        if manifest.missing:
            raise TorchReproError(f"the bundle lacks {manifest.missing[0]}")
        text = standalone.standalone_script(manifest, graph_text, verdict, source)
        kept = {name: manifest.values[name] for name in standalone.kept_apart(manifest)}
    except Exception as exc:
        reason = f"repro.py could not be written ({in_a_line(exc)})"
        text, kept = standalone.no_script(reason), {}
        manifest = with_notes(manifest, reason)
    optional: dict[str, Content] = {SCRIPT: text.encode()}
    if kept:
        optional[VALUES] = lambda path: torch.save(_detached(values(kept)), path)
    return replace(members, manifest=manifest, optional={**members.optional, **optional})


def with_notes(manifest: Manifest, *notes: str) -> Manifest:
    return msgspec.structs.replace(manifest, notes=(*manifest.notes, *notes))


def _any_fake(value: Any) -> bool:
    return any(is_fake(tensor) for _, tensor in tensors_in(value))


def _detached(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in values.items()
    }


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


def _manifest(
    repro: Repro,
    written: GraphText,
    packed: PackedValues,
    verdict: Verdict | None,
    run_id: str,
    operators: Operators,
) -> Manifest:
    left_out = tuple(
        f"the setting {name} is neither data nor code that can be kept, and was left out"
        for name in repro.ambient.left_out
    )
    notes = [*repro.notes, *packed.notes, *left_out, *written.notes, *operators.notes]
    environment = Environment()
    try:
        environment = Environment.capture()
    except Exception as exc:
        notes.append(f"versions and hardware could not be read ({in_a_line(exc)})")
    return Manifest(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        run_id=run_id or new_run_id(),
        place=repro.place,
        compiler=repro.compiler,
        ambient=replace(repro.ambient, rng={}),
        environment=environment,
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
        ops=written.ops,
        elements=sum(int(hint(tensor.numel()) or 0) for _, tensor in tensors_in(repro.inputs)),
        expected=repro.expected,
        origin=repro.origin,
        probe=repro.probe,
        groups=repro.groups or needed_groups(repro.graph, repro.inputs),
        collectives=tuple(CollectiveEntry(one.op, one.arguments) for one in repro.collectives),
        verdict=None if verdict is None else as_data(verdict.to_dict()),
        notes=tuple(dict.fromkeys(notes)),
        missing=(*written.missing, *packed.missing),
    )


def finished(unfinished: Path, verdict: Verdict, *, earlier: int = 0) -> Members:
    """Return the files of a bundle that was written ahead of a call, with its verdict and script.

    The tensors' bytes are kept unchanged: that needs neither the device they came from, which may just have
    failed, nor the memory to hold them. `earlier` calls of the same kind came before the failing one.
    """
    with open_bundle_files(unfinished) as opened:
        manifest = _with_verdict(manifest_of(opened), verdict, earlier)
        graph_text = text_of(opened, GRAPH)
        source = text_of(opened, SOURCE) if SOURCE in opened else ""
        files: dict[str, Content] = {
            name: _linked(unfinished / name) for name in opened.names if name not in (MANIFEST, SCRIPT)
        }

    def values(wanted: Mapping[str, ValueEntry]) -> dict[str, Any]:
        # On the CPU, wherever they were: that device may just have failed.
        storages = open_storages(unfinished / TENSORS)
        return unpack_values(wanted, storages.__getitem__, device_map=lambda device: torch.device("cpu"))

    return _with_script(Members(manifest, files), graph_text, verdict, source, values)


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
