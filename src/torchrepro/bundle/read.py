"""Read what a bundle says of itself. Needs no torch, so a wrong path is answered at once."""

from __future__ import annotations

from pathlib import Path

from torchrepro.bundle.manifest import Manifest, decode_manifest
from torchrepro.bundle.open import BundleFiles, open_bundle_files
from torchrepro.nouns.errors import BundleError

GRAPH = "graph.py"
TENSORS = "tensors.safetensors"
SCRIPT = "repro.py"
OPERATORS = "operators.py"
"""Only where the graph calls operators or Triton kernels of the user: their source."""
SOURCE = "source.py"
"""Only where the graph calls code of the user that no import finds."""
VALUES = "values.pt"
"""Only beside a script that needs it: values that plain torch code cannot make in a line."""

LOCATED = "located"
"""Not of the bundle itself: a folder in it with what `torchrepro locate` has found out."""


def read_manifest(path: Path) -> Manifest:
    """The manifest of a bundle, which has all the files it should."""
    with open_bundle_files(path) as files:
        manifest = manifest_of(files)
        missing = [name for name in (GRAPH, TENSORS) if name not in files]
        if missing:
            raise BundleError(
                f"{path} has no {' and no '.join(missing)}",
                next_step="the bundle is incomplete: take it again",
            )
        return manifest


def manifest_of(files: BundleFiles) -> Manifest:
    return decode_manifest(files.read_bytes("manifest.json"), str(files.location))


def read_graph_text(path: Path) -> str:
    with open_bundle_files(path) as files:
        return text_of(files, GRAPH)


def read_source_text(path: Path) -> str:
    """The user's code in a bundle; empty where there is none."""
    with open_bundle_files(path) as files:
        return "\n\n".join(text_of(files, name) for name in (SOURCE, OPERATORS) if name in files)


def text_of(files: BundleFiles, name: str) -> str:
    try:
        return files.read_bytes(name).decode()
    except UnicodeDecodeError as exc:
        raise BundleError(
            f"{name} of {files.location} is damaged (no text)", next_step="take the bundle again"
        ) from exc
