"""LocateSettings and LocateDirectory: the user's settings, and where the answer is written.

The answer about a bundle is written to `located/` in it, or to `NAME.located/` next to a zip:

    result.json       the answer as data
    kernel.cpp|.py    the generated code that computes the culprit op
    output_code.py    what the compiler wrote for the whole graph
    graph/            of a whole call: the culprit graph, as a bundle

What else is in it is described in `engine/search/run_directory.py`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec

from torchrepro.bundle.read import LOCATED, read_manifest, read_small_file
from torchrepro.engine.search import run_directory as shared
from torchrepro.engine.search.process import Search
from torchrepro.nouns.results import Located


@dataclass(frozen=True, slots=True)
class LocateSettings:
    """Settings of the search. They do not change what is found, only how much of it in the given time."""

    jobs: int | None = None
    """Runs at a time; None: one for each core."""
    time_limit: float | None = None
    """Seconds to search, after the baseline has failed; None: until every step has finished."""
    trusted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LocateDirectory(shared.RunDirectory):
    """The paths of an answer."""

    left: ClassVar[tuple[str, ...]] = ("kernel", "output_code", "graph", *shared.RunDirectory.left)

    graph = shared.Entry("graph")

    def finished(self) -> Located | None:
        """Return the answer of a search that was not stopped, else None."""
        try:
            found = msgspec.convert(json.loads(read_small_file(self.result)), Located, strict=False)
        except (OSError, ValueError, msgspec.MsgspecError):
            return None
        return None if found.stopped else found


def locate_directory(wanted: Path | None, bundle: Path) -> tuple[LocateDirectory, str]:
    """Return the wanted directory, else the bundle's own; and a note if neither could be used."""
    if bundle.is_dir() and os.access(bundle, os.W_OK | os.X_OK):
        preferred = bundle.absolute() / LOCATED
    else:
        name = bundle.stem if bundle.suffix == ".zip" else bundle.name
        preferred = bundle.absolute().with_name(f"{name}.{LOCATED}")
    path, elsewhere = shared.place_for(wanted, preferred)
    return LocateDirectory(path), elsewhere


def locate_search(
    bundle: Path,
    settings: LocateSettings | None = None,
    *,
    out: Path | None = None,
    fresh: bool = False,
) -> Search[Located]:
    """Return the search for what makes a bundle fail."""
    read_manifest(bundle)  # a wrong path is an error at once
    directory, elsewhere = locate_directory(out, bundle)
    return Search(
        "torchrepro.locate.job:locate",
        Located,
        bundle,
        directory,
        settings or LocateSettings(),
        directory.finished,
        elsewhere,
        fresh,
    )
