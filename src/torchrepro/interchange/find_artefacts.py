"""Find the artefacts in a file or directory: repros, launchers, debug directories, traces. Needs no torch."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from torchrepro.bundle.read import MANIFEST, read_small_file
from torchrepro.interchange.read_artefact import is_artefact
from torchrepro.nouns.errors import TorchReproError

_NAMES = re.compile(r"(minifier_launcher|repro|fx_graph_runnable[\w-]*)\.(py|txt)|.*torch_trace.*\.log")
"""What torch and tlparse call artefacts. Checkpoints of the minifier are imported by name alone."""
_TRACE = re.compile(r"[VDIWEC]\d{4} .*?\] (?=\{)")
"""What a line of a trace has in front of its record."""
_LARGEST = 256 << 20
_PYTORCHS = "give minifier_launcher.py, repro.py, fx_graph_runnable.py, or a directory or trace that has one"


@dataclass(frozen=True, slots=True)
class Payload:
    """The text of an artefact."""

    name: str
    """A name for its bundle."""
    text: str
    path: Path
    """The file that it is in: the bytes of its storages lie next to that."""
    in_trace: bool = False


def find_artefacts(place: Path) -> list[Payload]:
    """Return the artefacts at a path; TorchReproError where there is none."""
    if not place.exists():
        raise TorchReproError(f"{place} does not exist", next_step=_PYTORCHS)
    if place.is_dir() and (place / MANIFEST).exists():
        raise TorchReproError(f"{place} is a bundle already", next_step="try torchrepro check on it")
    found = [payload for path in _files(place) for payload in _payloads(path)]
    # A debug directory has the same graph as a file and in its trace: the file has its data next to it.
    in_files = {_body(payload.text) for payload in found if not payload.in_trace}
    found = [one for one in found if not (one.in_trace and _body(one.text) in in_files)]
    if not found and not place.is_dir() and _is_exported(place):
        raise TorchReproError(
            f"{place} was exported by torchrepro for torch's own tool, and is no artefact of it",
            next_step="use the bundle that it was exported from",
        )
    if not found:
        what = "nothing that PyTorch's tools write" if place.is_dir() else "no artefact of PyTorch's tools"
        raise TorchReproError(
            f"{place} has {what}" if place.is_dir() else f"{place} is {what}", next_step=_PYTORCHS
        )
    return found


def _is_exported(path: Path) -> bool:
    text = read_small_file(path, _LARGEST).decode()
    return "run_repro(mod, load_args" in text and "class Graph(torch.nn.Module):" in text


def _files(place: Path) -> Iterator[Path]:
    if not place.is_dir():
        yield place
        return
    for folder, folders, names in os.walk(place):
        folders.sort()
        if MANIFEST not in names:
            yield from (Path(folder) / name for name in sorted(names) if _NAMES.fullmatch(name))


def _payloads(path: Path) -> Iterator[Payload]:
    try:
        text = read_small_file(path, _LARGEST).decode()
    except OSError as exc:
        raise TorchReproError(f"{path} cannot be read: {exc.strerror}", next_step=_PYTORCHS) from None
    except UnicodeDecodeError:
        raise TorchReproError(f"{path} is no text", next_step=_PYTORCHS) from None
    if _TRACE.match(text.partition("\n")[0]):
        yield from _in_trace(path, text)
    elif is_artefact(text):
        named = path.parent.name if path.stem.startswith("fx_graph_runnable") else ""
        yield Payload("-".join(filter(None, (named, path.stem))), text, path)


def _in_trace(path: Path, text: str) -> Iterator[Payload]:
    """Yield the payloads `fx_graph_runnable` of a trace (`TORCH_TRACE`), each line behind a tab."""
    lines: list[str] | None = None
    name = ""
    for line in (*text.split("\n"), ""):
        if line.startswith("\t"):
            if lines is not None:
                lines.append(line[1:])
            continue
        if lines:
            yield Payload(name, "\n".join(lines), path, in_trace=True)
        found = _TRACE.match(line)
        name = _runnable_in(line[found.end() :]) if found else ""
        lines = [] if name else None


def _runnable_in(record: str) -> str:
    """Return a name for the graph that a record of a trace announces; empty for any other record."""
    if "fx_graph_runnable" not in record:
        return ""
    try:
        known = json.loads(record)
    except (ValueError, RecursionError):
        return ""
    artefact = known.get("artifact") if isinstance(known, dict) else None
    if not isinstance(artefact, dict) or artefact.get("name") != "fx_graph_runnable":
        return ""
    numbers = [known.get(key) for key in ("frame_id", "frame_compile_id", "attempt")]
    return "-".join(["trace", *(str(number) for number in numbers if isinstance(number, int))])


def _body(text: str) -> str:
    """Return the part of an artefact by which two are the same: graph and inputs, not how they were run."""
    start = text.find("class Repro(")
    end = text.find("load_args._version", start)
    return text[start:end]
