"""What lies around a bundle: the directory in which it was minified, the smallest one, what was located.

A user names whichever they have at hand: the failing bundle, the directory that `minify` has made, or the
minimal bundle in it. Only paths that follow from that one are read: a result may come from a stranger, and
the paths in it could name any file of this machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torchrepro.bundle.open import MANIFEST, open_bundle_files
from torchrepro.bundle.read import SCRIPT, read_manifest, text_of
from torchrepro.minify.run_directory import CAUGHT, SUFFIX, RunDirectory
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.located import Located
from torchrepro.nouns.minified import Minified
from torchrepro.report.recorded import located_at, located_directories, minified_in


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The bundle that a report is about, and what else is known of it."""

    bundle: Path
    minified: Minified | None = None
    minimal: Path | None = None
    script: str = ""
    """Of the minimal one where there is one, else the bundle's own."""
    located: Located | None = None
    located_in_minimal: Located | None = None
    guilty_graph: Path | None = None
    """Of a whole call, which is one node: the graph of it that `locate` has found guilty."""
    notes: tuple[str, ...] = ()


def surroundings_of(target: Path) -> Surroundings:
    """Find what belongs together; a wrong path is an error at once."""
    run = _run_directory_of(target)
    if run is None:
        return _found(target, _beside(target))
    minified = minified_in(run)
    bundle = _original(run, minified)
    if bundle is None:
        note = "the bundle that was minified is not here any more: this is about the minimal one"
        return _found(run / "minimal", run, note)
    return _found(bundle, run)


def _found(bundle: Path, run: Path | None, *notes: str) -> Surroundings:
    read_manifest(bundle)
    minified = minified_in(run) if run is not None else None
    minimal = None
    if run is not None and minified is not None and _is_bundle(RunDirectory(run).minimal):
        minimal = RunDirectory(run).minimal
    name = SCRIPT if minified is None else Path(minified.script).name
    return Surroundings(
        bundle=bundle,
        minified=minified,
        minimal=minimal,
        script=_script(minimal, name) if minimal is not None else _script(bundle, SCRIPT),
        located=located_at(bundle),
        located_in_minimal=located_at(minimal) if minimal is not None and minimal != bundle else None,
        guilty_graph=next(
            (path for place in located_directories(bundle) if _is_bundle(path := place / "graph")), None
        ),
        notes=notes,
    )


def _run_directory_of(target: Path) -> Path | None:
    """The directory of a minifying run, if that or the minimal bundle in it is what was named."""
    if target.is_dir() and not (target / MANIFEST).exists() and minified_in(target) is not None:
        return target
    around = target.absolute().parent
    if target.is_dir() and target.name == "minimal" and minified_in(around) is not None:
        return around
    return None


def _beside(bundle: Path) -> Path | None:
    """Where `minify` puts its results for a bundle: beside it, or here where it may not write there."""
    name = (bundle.stem if bundle.suffix == ".zip" else bundle.name) + SUFFIX
    for directory in (bundle.absolute().with_name(name), Path.cwd() / name):
        if minified_in(directory) is not None:
            return directory
    return None


def _original(run: Path, minified: Minified | None) -> Path | None:
    """The bundle that was minified: beside its run directory, or caught in it."""
    if minified is None:
        return None
    name = Path(minified.original).name
    candidates = [
        run.absolute().with_name(name),
        run / CAUGHT / name,
        *sorted(run.glob(f"{CAUGHT}/*/{name}")),
    ]
    return next((path for path in candidates if _is_bundle(path)), None)


def _is_bundle(path: Path) -> bool:
    try:
        read_manifest(path)
    except (TorchReproError, OSError):
        return False
    return True


def _script(bundle: Path, name: str) -> str:
    """A script in a bundle; empty where it has none of this name."""
    with open_bundle_files(bundle) as files:
        return text_of(files, name) if name in files else ""
