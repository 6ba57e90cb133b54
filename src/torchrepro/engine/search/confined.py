"""The run directory of a search in a sandbox: a copy in the scratch directory, copied out by the parent.

The confined search never sees the user's run directory. It continues from a copy of what an earlier run left,
and what it leaves is copied out as data: no links, no devices. Its answer may name files of the run directory
only. Needs no torch.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchrepro.bundle.archive import new_run_id
from torchrepro.engine.sandbox.chosen import Sandbox, remove
from torchrepro.engine.search.run_directory import RunDirectory
from torchrepro.nouns.errors import TorchReproError

_RUN, _KNOWN = "run", "known"
_NEVER = ("scratch", "cache", "run.json", "result.json")
"""What stays where it is: only the parent says what a run is about and what its result is."""
_PATHS = ("bundle", "script", "original", "directory")
"""The keys of paths in an answer."""
_LARGEST, _MOST_FILES, _DEEPEST = 16 << 30, 100_000, 16
"""Bytes, files and levels of directories that one copy may have."""
_PIECE = 1 << 20


@contextmanager
def working_copy(outer: RunDirectory, sandbox: Sandbox) -> Iterator[RunDirectory]:
    """Yield a run directory in the sandbox that continues `outer`; afterwards copy what is new out."""
    inner = RunDirectory(sandbox.scratch / _RUN)
    inner.path.mkdir()
    for name in _names(outer, outer.path):
        copy_tree(outer.path / name, inner.path / name)
    try:
        yield inner
    finally:
        copy_out(outer)


def copy_out(outer: RunDirectory) -> None:
    """Copy what a confined search has left in its working copy, if there is one, into the run directory."""
    inner = outer.scratch / _RUN
    if not inner.is_dir() or inner.is_symlink():
        return
    for name in _names(outer, inner):
        target = outer.path / name
        fresh = target.with_name(f".{name}.{new_run_id()}.partial")
        copy_tree(inner / name, fresh)
        if fresh.is_dir():
            remove(target)
        if fresh.exists():
            os.replace(fresh, target)


def copy_known(known: RunDirectory, sandbox: Sandbox) -> Path:
    """Copy the verdicts of another search into the sandbox, and return where they are."""
    target = sandbox.scratch / _KNOWN
    target.mkdir()
    for path in (known.original, *known.path.glob(f"{known.verdicts.name}*")):
        copy_tree(path, target / path.name)
    return target


def answer_outside(told: dict[str, Any], outer: RunDirectory, inner: Path, bundle: Path) -> dict[str, Any]:
    """Return a confined search's answer with the paths of the run directory; raise if it names others."""
    answer: dict[str, Any] = _renamed(told, str(inner), str(outer.path))
    allowed = (outer.path, bundle.absolute(), bundle.resolve())
    for path in _paths_in(answer):
        if not any(Path(os.path.normpath(path)).is_relative_to(place) for place in allowed):
            raise TorchReproError(
                f"the answer of the search names a file that is not its own: {path!r}",
                next_step="do not trust this bundle",
            )
    return answer


def _names(directory: RunDirectory, place: Path) -> list[str]:
    """Return the names of what a search leaves in its directory and may continue from."""
    found = (entry.name for entry in place.iterdir() if entry.name.startswith(directory.left))
    return sorted(name for name in found if not name.startswith(_NEVER))


def _renamed(value: Any, old: str, new: str) -> Any:
    match value:
        case str():
            return value.replace(old, new)
        case list():
            return [_renamed(item, old, new) for item in value]
        case dict():
            return {key: _renamed(item, old, new) for key, item in value.items()}
    return value


def _paths_in(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _paths_in(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key in _PATHS and isinstance(item, str) and item:
                yield item
            else:
                yield from _paths_in(item)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a file or a directory, as what is there now: regular files only, whatever else is left out.

    A process of the sandbox may still be at work on the source, where the kernel cannot end all at once. So
    a file is opened without following links, relative to its open directory, and is new in `target`.
    """
    budget = _Budget()
    place = os.open(source.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _copy(place, source.name, target, budget, _DEEPEST)
    finally:
        os.close(place)


class _Budget:
    """What one copy may take."""

    def __init__(self) -> None:
        self.bytes, self.files = _LARGEST, _MOST_FILES

    def spend(self, *, size: int = 0, files: int = 0) -> None:
        self.bytes -= size
        self.files -= files
        if self.bytes < 0 or self.files < 0:
            raise TorchReproError(
                "the run has left more files than a result has", next_step="do not trust this bundle"
            )


def _copy(place: int, name: str, target: Path, budget: _Budget, depth: int) -> None:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
    except OSError:
        return  # a link, a socket, or gone
    try:
        mode = os.fstat(descriptor).st_mode
        budget.spend(files=1)
        if stat.S_ISDIR(mode) and depth:
            target.mkdir()
            for entry in os.listdir(descriptor):
                _copy(descriptor, entry, target / entry, budget, depth - 1)
        elif stat.S_ISREG(mode):
            with open(target, "xb") as file:
                while piece := os.read(descriptor, _PIECE):
                    budget.spend(size=len(piece))
                    file.write(piece)
    finally:
        os.close(descriptor)
