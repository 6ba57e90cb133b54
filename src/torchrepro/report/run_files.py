"""Read the results that commands have left around a bundle. Needs no torch.

A user names whichever they have at hand: the failing bundle, the directory that `minify` has made, or the
minimal bundle in it. Only paths that follow from that one are read: a result may come from a stranger, and
the paths in it could name any file of this machine. Without this user's mark for its directory and bundle it
is a claim, of which nothing is verified. Any of these files may come from another version: what cannot be
read is None, never an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from torchrepro.bundle.read import (
    LOCATED,
    MANIFEST,
    SCRIPT,
    open_bundle_files,
    read_manifest,
    read_small_file,
    text_of,
)
from torchrepro.engine.search.run_directory import minified_beside
from torchrepro.minify.run_directory import CAUGHT, RunDirectory
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.results import Confidence, Located, Minified
from torchrepro.nouns.verdict import Verdict

Result = TypeVar("Result")


_LARGEST = 64 << 20
"""Maximum bytes of a result: that of a graph with 3,000 nodes has less than one million."""


_CLAIM = "was sent, moved or copied, or is about another bundle: nothing in it was verified here"


def verdict_in(data: Mapping[str, Any] | None) -> Verdict | None:
    """Read a verdict that `Verdict.to_dict` wrote; it has only the values that differ."""
    try:
        return None if data is None else Verdict.from_dict(data)
    except (msgspec.ValidationError, AttributeError, TypeError):
        return None


def located_at(bundle: Path) -> tuple[Located | None, Path | None]:
    """Read the answer of `torchrepro locate` in a bundle, or next to a zip; and where, if it is a claim."""
    for where in located_directories(bundle):
        found = _converted(_json_in(where / "result.json"), Located)
        if found is not None and RunDirectory(where).is_own(bundle):
            return found, None
        if found is not None:
            workaround = found.workaround and replace(found.workaround, verified=False)
            return replace(found, confidence=Confidence.UNKNOWN, workaround=workaround), where
    return None, None


def located_directories(bundle: Path) -> tuple[Path, ...]:
    """Return where `torchrepro locate` may have written its answer: in the bundle, next to it, or here."""
    whole = bundle.absolute()
    name = f"{whole.stem if whole.suffix == '.zip' else whole.name}.{LOCATED}"
    return whole / LOCATED, whole.with_name(name), Path.cwd() / name


def minified_in(directory: Path) -> Minified | None:
    """Read the result of `torchrepro minify` in its directory."""
    return _converted(_json_in(directory / "result.json"), Minified)


def _minified_for(bundle: Path, run: Path | None) -> tuple[Minified | None, Path | None]:
    """Read the result of `torchrepro minify` on a bundle; and where it is, if it is a claim."""
    found = minified_in(run) if run is not None else None
    if run is None or found is None or RunDirectory(run).is_own(bundle):
        return found, None
    return replace(found, reproduces=False), run


def _json_in(path: Path) -> Any:
    try:
        return json.loads(read_small_file(path, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return None


def _converted(data: Any, wanted: type[Result]) -> Result | None:
    if data is None:
        return None
    try:
        # Not strict: infinity and NaN are strings there (`plain.as_data`).
        return msgspec.convert(data, wanted, strict=False)
    except msgspec.ValidationError:
        return None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The bundle that a report is about, and the results of `minify` and `locate` on it."""

    bundle: Path
    minified: Minified | None = None
    minimal: Path | None = None
    script: str = ""
    """The script of the minimal bundle if there is one, else the bundle's own."""
    located: Located | None = None
    located_in_minimal: Located | None = None
    guilty_graph: Path | None = None
    """For a whole call, which is one node: its failing graph, as `locate` saved it."""
    claims: frozenset[str] = frozenset()
    """The commands whose results are not this user's, or are about another bundle: nothing is verified."""
    notes: tuple[str, ...] = ()


def surroundings_of(target: Path) -> Surroundings:
    """Return the bundle at a path with the results that belong to it; raise if there is no bundle."""
    run = _run_directory_of(target)
    if run is None:
        # Where `minify` writes its results: next to the bundle, or here if that is not writable.
        usual = minified_beside(target)
        places = (usual, Path.cwd() / usual.name)
        return _found(target, next((place for place in places if minified_in(place) is not None), None))
    minified = minified_in(run)
    original = Path(minified.original).name if minified is not None else ""
    # The bundle that was minified: next to its run directory, or caught in it.
    homes = [run.absolute().parent, run / CAUGHT, *sorted(run.glob(f"{CAUGHT}/*"))]
    for bundle in (place / original for place in homes if original):
        if _is_bundle(bundle):
            return _found(bundle, run)
    note = "the bundle that was minified is not here any more: this is about the minimal one"
    return _found(run / "minimal", run, note)


def _found(bundle: Path, run: Path | None, *notes: str) -> Surroundings:
    read_manifest(bundle)
    minified, claimed = _minified_for(bundle, run)
    minimal = RunDirectory(run).minimal if run is not None and minified is not None else None
    minimal = minimal if minimal is not None and _is_bundle(minimal) else None
    name = SCRIPT if minified is None or minimal is None else Path(minified.script).name
    graphs = (place / "graph" for place in located_directories(bundle))
    with open_bundle_files(minimal or bundle) as files:
        script = text_of(files, name) if name in files else ""
    located, place = located_at(bundle)
    apart = minimal is not None and minimal != bundle
    located_in_minimal, place_in_minimal = (
        located_at(minimal) if minimal is not None and apart else (None, None)
    )
    claims = [where for where in (claimed, place, place_in_minimal) if where is not None]
    return Surroundings(
        bundle=bundle,
        minified=minified,
        minimal=minimal,
        script=script,
        located=located,
        located_in_minimal=located_in_minimal,
        guilty_graph=next(filter(_is_bundle, graphs), None),
        claims=frozenset(
            (*(("minify",) if claimed else ()), *(("locate",) if place or place_in_minimal else ()))
        ),
        notes=(*notes, *(f"{where.name} {_CLAIM}" for where in claims)),
    )


def _run_directory_of(target: Path) -> Path | None:
    """Return the directory of a minify run, if the target is that or the minimal bundle in it."""
    if target.is_dir() and not (target / MANIFEST).exists() and minified_in(target) is not None:
        return target
    around = target.absolute().parent
    named = target.is_dir() and target.name == "minimal"
    return around if named and minified_in(around) is not None else None


def _is_bundle(path: Path) -> bool:
    try:
        read_manifest(path)
    except (TorchReproError, OSError):
        return False
    return True
