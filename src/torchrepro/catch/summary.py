"""`summary.json` beside the bundles of a run: what was caught, for scripts to read. Needs no torch.

The last lines that a watched program leaves on the terminal, after its own traceback. Needs no torch.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.manifest import Manifest
from torchrepro.bundle.read import read_manifest
from torchrepro.nouns.errors import TorchReproError

SUMMARY = "summary.json"
UNFINISHED = "-unfinished"
"""Ends the name of a bundle that was written before its call; it keeps that if the process dies then."""


@dataclass(frozen=True, slots=True)
class Caught:
    """One failure of a run."""

    path: Path
    verdict: str
    signature: str
    stage: str
    ops: int
    place: str
    summary: str


def caught_in(directory: Path, run_id: str) -> list[Caught]:
    """The bundles of a run, oldest first."""
    return [_caught(path, manifest) for path, manifest in _bundles(directory, run_id)]


def write_summary(directory: Path, run_id: str, **facts: Any) -> Path:
    """Write `summary.json` anew from the bundles that are there, in one step."""
    found = caught_in(directory, run_id)
    bundles = [{**asdict(caught), "path": str(caught.path)} for caught in found]
    text = msgspec.json.format(msgspec.json.encode({"run_id": run_id, "bundles": bundles, **facts}), indent=1)
    target = directory / SUMMARY
    partial = directory / f".{SUMMARY}.{new_run_id()}.partial"
    try:
        partial.write_bytes(text + b"\n")
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _bundles(directory: Path, run_id: str) -> Iterator[tuple[Path, Manifest]]:
    for path in sorted(directory.glob(f"{run_id}-*")):
        if not path.is_dir() or _is_idle(path):
            continue
        try:
            yield path, read_manifest(path)
        except TorchReproError:
            continue  # being written or removed by another process of the run


def _is_idle(path: Path) -> bool:
    from torchrepro.catch.crash_record import read_flight

    if not path.name.endswith(UNFINISHED):
        return False
    flight = read_flight(path)
    return flight is None or flight.phase == "idle"


def _caught(path: Path, manifest: Manifest) -> Caught:
    expected, verdict = manifest.expected, manifest.verdict or {}
    return Caught(
        path=path,
        verdict=expected.kind.value if expected else "unfinished",
        signature=str(expected) if expected else "",
        stage=expected.stage.value if expected else "none",
        ops=manifest.ops,
        place=manifest.place.value,
        summary=str(verdict.get("summary", "")) or "the process ended inside this call",
    )


_SHOWN = 5


def closing_lines(caught: Sequence[Caught]) -> list[str]:
    """What failed, the bundle's path and the command to minify it: for each failure, the first one last.

    The last lines are what a person sees, and the first failure is most often the cause of the others.
    """
    lines = []
    left_out = len(caught) - _SHOWN
    if left_out > 0:
        lines.append(f"torchrepro: {left_out} more failures (summary.json has all)")
    for found in reversed(caught[:_SHOWN]):
        where = f" in {found.stage}" if found.stage != "none" else ""
        first_line = found.summary.splitlines()[0] if found.summary else ""
        lines.append(f"torchrepro: {found.verdict}{where}: {_shortened(first_line)}")
        lines.append(f"  bundle  {found.path}")
        lines.append(f"  minify  torchrepro minify {shlex.quote(str(found.path))}")
    return lines


def _shortened(text: str, width: int = 160) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
