"""The directory of a search: one run at a time uses it, and continues an earlier run on the same input.

    result.json       the result as data
    scratch/          temporary files, while the run lasts
    cache/            what the compilers cache, while the run lasts
    run.json          what the verdicts depend on: the same command continues only if this is unchanged
    lock              held while a run is under way

A run directory can come along with a stranger's bundle, with a best that runs code or a cache of hostile
libraries. So `run.json` bears a mark that only this user can make for this directory; what is in a directory
without it is moved aside.

Needs no torch: the result of a finished run is returned at once.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import shutil
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, ClassVar

import msgspec

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.provenance import is_mark, mark_of
from torchrepro.bundle.read import MEMBERS, file_digest, read_small_file
from torchrepro.engine.processes.fresh_process import cache_directory
from torchrepro.nouns import __version__
from torchrepro.nouns.environment import cpu_name, cxx_version
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import telling_environment
from torchrepro.ranks.process import answers

_IN_WORDS = {
    "bundle": "the bundle has changed",
    "oracle": "the oracle has changed",
    "torchrepro": "the version of torchrepro has changed",
    "torch": "the version of torch has changed",
    "python": "the version of Python has changed",
    "machine": "the machine has changed",
    "cxx": "the C++ compiler has changed",
    "environ": "environment variables that matter to compilers have changed",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """The bundle, the oracle, and the versions of everything installed that takes part."""

    bundle: str = ""
    """A digest of its files."""
    oracle: str = ""
    torchrepro: str = ""
    torch: str = ""
    python: str = ""
    machine: str = ""
    cxx: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, bundle: Path, *, oracle: str = "") -> Identity:
        return replace(cls.here(), bundle=_digest(bundle), oracle=oracle)

    @classmethod
    def here(cls) -> Identity:
        """Return what is installed, without a bundle and an oracle."""
        return cls(
            torchrepro=__version__,
            torch=_torch_version(),
            python=platform.python_version(),
            machine=f"{platform.machine()} {cpu_name()}",
            cxx=cxx_version(),
            environ=telling_environment(),
        )

    @property
    def toolchain(self) -> str:
        """A digest of what compiled libraries depend on: runs with the same digest can share them.

        With the place of the installation, because inductor's keys have the paths of torch's headers in them.
        """
        parts = (self.torch, self.python, self.machine, self.cxx, sys.prefix)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]

    def changed_since(self, former: Identity) -> str:
        """Return the first change as text; empty if there is none."""
        for entry in fields(self):
            if getattr(self, entry.name) != getattr(former, entry.name):
                return _IN_WORDS[entry.name]
        return ""


def seed_here() -> Path:
    """Return where the warm cache of this installation's compiler is kept (`engine/search/setup.py`)."""
    return seed_of(Identity.here())


def seed_of(identity: Identity) -> Path:
    return cache_directory() / "warm" / identity.toolchain


def _digest(bundle: Path) -> str:
    """Return a digest of the members of a bundle. A gigabyte takes about a second."""
    # A stranger's directory may hold more: links, and files without an end.
    inside = [bundle / name for name in sorted(MEMBERS)] if bundle.is_dir() else [bundle]
    digest = hashlib.sha256()
    for path in inside:
        if path == bundle or (os.path.lexists(path) and stat.S_ISREG(path.lstat().st_mode)):
            digest.update(f"{path.name}:{file_digest(path)}\n".encode())
    return digest.hexdigest()


def _torch_version() -> str:
    """Return a digest of `torch/version.py`: the version, and the commit of a build from source."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    path = Path(spec.origin).with_name("version.py")
    if path.exists():
        return file_digest(path)
    return metadata.version("torch")


CAUGHT = "caught"
"""For a program instead of a bundle: the failures caught in it, described in `caught.json`."""
_WAIT_SECONDS = 10.0
"""Seconds to wait for the processes of a killed run to exit."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A path in a run directory."""

    name: str

    def __get__(self, directory: RunDirectory, owner: object) -> Path:
        return directory.path / self.name


class _Mark(msgspec.Struct):
    mark: str = ""


@dataclass(frozen=True, slots=True)
class _Former:
    """What an earlier run has written to `run.json`."""

    identity: Identity
    mark: str


MINIMAL = "minimal"
"""The smallest repro that `minify` has found, as a bundle."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The paths that every run directory has, and what an earlier run has left there."""

    path: Path

    left: ClassVar[tuple[str, ...]] = ("scratch", "cache", "result.json", "run.json")
    """Prefixes of the names of what runs leave here."""
    guests: ClassVar[tuple[str, ...]] = ("lock", CAUGHT, f"{CAUGHT}.json")
    """What may be here before the first run."""

    cache = Entry("cache")
    scratch = Entry("scratch")
    result = Entry("result.json")
    original = Entry("original.json")
    verdicts = Entry("verdicts.sqlite")
    minimal = Entry(MINIMAL)

    @property
    def mark(self) -> str:
        """The mark of the processes of a run here (`engine/processes/limits.py`)."""
        return hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:24]

    def begin(self, identity: Identity, *, fresh: bool) -> str:
        """Keep what an earlier run with the same identity has left; else start over and return why."""
        former = self._former()
        if former is not None and not self._is_marked(former):
            aside = self._move_aside()
            self._write(identity)
            return f"starting over: this user did not write what was here; it is in {aside} now"
        changed = "" if former is None else identity.changed_since(former.identity)
        if fresh or changed:
            self.clear()
        if former is None or fresh or changed:
            self._write(identity)
        return f"starting over: {changed}" if changed and not fresh else ""

    def is_about(self, identity: Identity) -> bool:
        """Return whether a run of this user has left results here for the same bundle and installation."""
        return self._own_identity() == identity

    def is_own(self, bundle: Path) -> bool:
        """Return whether a run of this user left what is here, on this bundle or one that led to it."""
        identity = self._own_identity()
        if identity is None:
            return False
        return bundle.absolute().is_relative_to(self.path.absolute()) or identity.bundle == _digest(bundle)

    def _own_identity(self) -> Identity | None:
        """Return what the results here are about; None if this user did not write them."""
        try:
            former = self._read()
        except (OSError, msgspec.MsgspecError):
            return None
        return former.identity if self._is_marked(former) else None

    def _write(self, identity: Identity) -> None:
        mark = mark_of(*self._facts(identity))
        write_json(self.path / "run.json", {**msgspec.to_builtins(identity), "mark": mark})

    def _read(self) -> _Former:
        content = read_small_file(self.path / "run.json")
        mark = msgspec.json.decode(content, type=_Mark).mark
        return _Former(msgspec.json.decode(content, type=Identity), mark)

    def _is_marked(self, former: _Former) -> bool:
        return is_mark(former.mark, *self._facts(former.identity))

    def _facts(self, identity: Identity) -> tuple[str, ...]:
        """Return what a mark stands for."""
        told = json.dumps(msgspec.to_builtins(identity), sort_keys=True)
        return "run directory", *self._place(), told

    def _place(self) -> tuple[str, str]:
        """Return which directory it is. The number of its inode differs in every copy of it."""
        return str(self.path.resolve()), str(self.path.stat().st_ino)

    def _move_aside(self) -> Path:
        """Move everything but what this run has put here to a new directory next to this one."""
        aside = self.path.with_name(f"{self.path.name}.untrusted-{new_run_id()}")
        aside.mkdir()
        for entry in self.path.iterdir():
            if entry.name not in self.guests:
                entry.rename(aside / entry.name)
        return aside

    def clear(self) -> None:
        """Remove what runs leave here, and nothing else."""
        for name in self.left:
            for path in (*self.path.glob(f"{name}*"), *self.path.glob(f".{name}*")):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def _former(self) -> _Former | None:
        try:
            return self._read()
        except FileNotFoundError:
            foreign = sorted(entry.name for entry in self.path.iterdir() if entry.name not in self.guests)
            if foreign:
                raise TorchReproError(
                    f"{self.path} holds something else ({', '.join(foreign[:3])})",
                    next_step="choose an empty or a new directory with --out",
                ) from None
            return None
        except (OSError, msgspec.MsgspecError):
            return _Former(Identity(), "")  # damaged, or no file: nothing that this user has marked


def minified_beside(bundle: Path) -> Path:
    """Return the default run directory of `minify` for a bundle."""
    name = bundle.stem if bundle.suffix == ".zip" else bundle.name
    return bundle.absolute().with_name(f"{name}.minified")


def place_for(wanted: Path | None, preferred: Path) -> tuple[Path, str]:
    """Make and return the wanted directory, else the preferred one; it is writable.

    If the preferred one is not writable, use one of that name in the working directory and return a note.
    """
    if wanted is None:
        refuse_link(preferred)
    if wanted is not None:
        make_directory(wanted, "choose another directory with --out")
        return wanted.absolute(), ""
    try:
        make_directory(preferred, "")
        return preferred, ""
    except TorchReproError as exc:
        fallback = Path.cwd() / preferred.name
        refuse_link(fallback)
        make_directory(fallback, "choose a directory that you may write to with --out")
        return fallback, f"{exc.fact}: using {fallback}"


def refuse_link(place: Path, next_step: str = "choose another directory with --out") -> None:
    """Raise if a place to write to is a link: next to a stranger's files it may lead anywhere."""
    if place.is_symlink():
        raise TorchReproError(f"{place} is a link", next_step=next_step)


@contextmanager
def held(directory: RunDirectory) -> Iterator[int]:
    """Hold the lock of a run directory, released once no process has the yielded descriptor open."""
    with _open_lock(directory.path / "lock") as file:
        _lock(file.fileno(), directory.path)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


def _open_lock(path: Path) -> IO[str]:
    """Open the lock's file; a link, a pipe or a device of this name is refused, not followed."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "a+")
        os.close(descriptor)
    except OSError as exc:
        if exc.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise
    raise TorchReproError(f"{path} is not a plain file", next_step="choose another directory with --out")


def write_json(path: Path, data: Any) -> None:
    """Write a file atomically: a reader sees the old content or the new one."""
    partial = path.with_name(f".{path.name}.{new_run_id()}.partial")
    try:
        # Not by msgspec, which writes NaN as null.
        partial.write_text(json.dumps(data, indent=1) + "\n")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def make_directory(path: Path, next_step: str) -> None:
    """Make a writable directory, or raise with `next_step`."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise TorchReproError(f"{path} is a file", next_step=next_step) from None
    except OSError as exc:
        raise TorchReproError(f"cannot make {path}: {exc.strerror}", next_step=next_step) from exc
    if not os.access(path, os.W_OK | os.X_OK):
        raise TorchReproError(f"{path} cannot be written to", next_step=next_step)


def _lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as exc:
            if exc.errno in (errno.ENOLCK, errno.ENOTSUP):
                return  # a file system without locks
            written = os.pread(descriptor, 32, 0)
            holder = int(written) if written.isdigit() else 0
        if (holder and answers(holder)) or time.monotonic() > deadline:
            raise TorchReproError(
                f"another run (process {holder}) is at work in {path}",
                next_step="wait for it, end it, or choose another directory with --out",
            )
        time.sleep(0.05)  # its holder was killed; the search process, which holds it too, is about to exit
