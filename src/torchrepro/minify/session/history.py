"""Each best of a search as a line in a file: how the size fell is known after an interruption as well."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import msgspec

from torchrepro.minify.statistics import Adoption


def read_history(path: Path) -> list[Adoption]:
    """What an interrupted search has left; a line that was half written is passed over."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return []
    found: list[Adoption] = []
    for line in lines:
        try:
            found.append(msgspec.json.decode(line, type=Adoption))
        except msgspec.DecodeError:
            continue  # its writer was killed: the next line is whole
    return found


def append_to_history(path: Path, adoption: Adoption) -> None:
    """Add a line. A full disk costs a picture in a report, not the search."""
    try:
        with path.open("a") as file:
            file.write(json.dumps(asdict(adoption)) + "\n")
    except OSError:
        with suppress(OSError):
            path.unlink(missing_ok=True)  # a history with holes would mislead
