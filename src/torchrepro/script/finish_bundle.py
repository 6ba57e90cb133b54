"""Finish a bundle that was written ahead of a call: give it its verdict and its script, under its final name.

The tensors stay the bytes they are. That needs neither the device they came from, which may just have failed,
nor the memory to hold them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from torchrepro.bundle.archive import Content, write_bundle_files
from torchrepro.bundle.entries import SameEntry, TensorTraits, ValueEntry
from torchrepro.bundle.manifest import Manifest, encode_manifest
from torchrepro.bundle.open import open_bundle_files
from torchrepro.bundle.read import GRAPH, SCRIPT, SOURCE, TENSORS, VALUES, manifest_of, text_of
from torchrepro.nouns.plain import as_data
from torchrepro.nouns.signature import Signature
from torchrepro.nouns.verdict import Verdict
from torchrepro.script.bundle_script import kept_apart, standalone_script, values_for_script


def finish_bundle(unfinished: Path, target: Path, verdict: Verdict, *, earlier: int = 0) -> Path:
    """The bundle of a call that failed in this way, after `earlier` calls of the same kind."""
    with open_bundle_files(unfinished) as files:
        manifest = _with_verdict(manifest_of(files), verdict, earlier)
        graph_text = text_of(files, GRAPH)
        source = text_of(files, SOURCE) if SOURCE in files else ""
        members: dict[str, Content] = {
            name: _linked(unfinished / name) for name in files.names if name not in ("manifest.json", SCRIPT)
        }
    members["manifest.json"] = encode_manifest(manifest)
    members[SCRIPT] = standalone_script(manifest, graph_text, verdict, source).encode()
    if kept_apart(manifest):
        members[VALUES] = _values_on_cpu(unfinished, manifest)
    return write_bundle_files(target, members)


def _with_verdict(manifest: Manifest, verdict: Verdict, earlier: int) -> Manifest:
    values = dict(manifest.values)
    for call in range(earlier):
        for index in range(manifest.inputs):
            values[f"earlier.{call}.input.{index}"] = _again(manifest.values[f"input.{index}"])
    return msgspec.structs.replace(
        manifest,
        expected=Signature.of(verdict),
        verdict=as_data(verdict.to_dict()),
        earlier=earlier,
        values=values,
    )


def _again(entry: ValueEntry) -> ValueEntry:
    return SameEntry(entry.number) if isinstance(entry, TensorTraits) else entry


def _linked(source: Path) -> Callable[[Path], None]:
    """The same file under another name, or a copy where the file system has no links."""

    def write(path: Path) -> None:
        try:
            os.link(source, path)
        except OSError:
            shutil.copyfile(source, path)

    return write


def _values_on_cpu(unfinished: Path, manifest: Manifest) -> Callable[[Path], None]:
    """What the script cannot make by itself; on the CPU, wherever it was."""
    import torch

    from torchrepro.bundle.storage_file import open_storages
    from torchrepro.bundle.values import unpack_values

    wanted = {name: manifest.values[name] for name in kept_apart(manifest)}
    storages = open_storages(unfinished / TENSORS)
    values = unpack_values(wanted, storages.__getitem__, device_map=lambda device: torch.device("cpu"))
    writer = values_for_script(manifest, values)
    assert writer is not None
    return writer
