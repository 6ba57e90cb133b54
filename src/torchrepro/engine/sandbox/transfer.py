"""Copy files into and out of a sandbox's scratch directory, as data: no links, no devices, within limits."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchrepro.nouns.errors import TorchReproError

_LARGEST = 16 << 30
_MOST_FILES = 100_000
_DEEPEST = 16
_PIECE = 1 << 20


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


def remove(directory: Path) -> None:
    """Remove a directory, also one in which a stranger's process has made unreadable directories."""

    def again(function: Callable[..., Any], path: str, raised: object) -> None:
        with suppress(OSError):
            _make_accessible(os.path.dirname(path))
            if os.path.isdir(path) and not os.path.islink(path):
                _make_accessible(path)
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)

    if directory.exists():
        shutil.rmtree(directory, onerror=again)


def _make_accessible(path: str) -> None:
    """Let the owner of a directory read and write it; never through a link."""
    place = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        os.chmod(f"/proc/self/fd/{place}", 0o700)
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
