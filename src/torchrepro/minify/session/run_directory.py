"""The directory of a run: what is known so far, the best so far, the result; one run at a time in it.

    original.json     how the original fails, and how often
    verdicts.sqlite   every verdict, by the canonical key of the candidate
    best/             the best so far as a bundle, replaced in one step
    also_seen/        failures of other kinds that were met on the way
    minimal/          the result as a bundle, with the script
    result.json       the result as data
    scratch/          temporary files, while the run lasts
    cache/            what the compilers cache, while the run lasts
    run.json          what the verdicts depend on: the same command goes on only if this is still the same

Needs no torch: a run that is finished is answered at once.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.naming import new_run_id
from torchrepro.errors import TorchReproError
from torchrepro.isolate.groups import answers
from torchrepro.minify.session.identity import Identity
from torchrepro.minify.session.result import Minified
from torchrepro.minify.session.settings import MinifySettings

SUFFIX = ".minified"
CAUGHT = "caught"
"""Where a program was given instead of a bundle: what was caught in it, and `caught.json` about that."""
_OF_A_RUN = (
    "original.json",
    "verdicts.sqlite",
    "best",
    "also_seen",
    "minimal",
    "scratch",
    "cache",
    "result.json",
    "run.json",
)
_PATIENCE = 10.0
"""Seconds for the processes of a killed run to go."""


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """The paths in a run directory, and what a former run has left there."""

    path: Path

    @property
    def verdicts(self) -> Path:
        return self.path / "verdicts.sqlite"

    @property
    def best(self) -> Path:
        return self.path / "best"

    @property
    def also_seen(self) -> Path:
        return self.path / "also_seen"

    @property
    def minimal(self) -> Path:
        return self.path / "minimal"

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    @property
    def scratch(self) -> Path:
        return self.path / "scratch"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def original(self) -> Path:
        return self.path / "original.json"

    @property
    def mark(self) -> str:
        """What the processes of a run here carry (`isolate/leftovers.py`)."""
        return hashlib.sha256(os.fsencode(self.path.resolve())).hexdigest()[:24]

    def begin(self, identity: Identity, *, fresh: bool) -> str:
        """Keep what a former run has left if it is about the same; else start over, and say why."""
        former = self._former()
        changed = "" if former is None else identity.changed_since(former)
        if fresh or changed:
            self.clear()
        if former is None or fresh or changed:
            write_json(self.path / "run.json", msgspec.to_builtins(identity))
        return f"starting over: {changed}" if changed and not fresh else ""

    def finished(self, settings: MinifySettings) -> Minified | None:
        """The result, if a search with these settings has come to its end here."""
        try:
            found = msgspec.json.decode(self.result.read_bytes(), type=Minified)
        except (OSError, msgspec.DecodeError):
            return None
        complete = found.minimal and Path(found.script).exists() and Path(found.bundle).exists()
        return found if complete and found.scope == settings.scope else None

    def clear(self) -> None:
        """Remove what runs leave here, and nothing else."""
        for name in _OF_A_RUN:
            for path in (*self.path.glob(f"{name}*"), *self.path.glob(f".{name}*")):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def _former(self) -> Identity | None:
        try:
            return msgspec.json.decode((self.path / "run.json").read_bytes(), type=Identity)
        except FileNotFoundError:
            known = ("lock", CAUGHT, f"{CAUGHT}.json")
            foreign = sorted(entry.name for entry in self.path.iterdir() if entry.name not in known)
            if foreign:
                raise TorchReproError(
                    f"{self.path} holds something else ({', '.join(foreign[:3])})",
                    next_step="choose an empty or a new directory with --out",
                ) from None
            return None
        except msgspec.DecodeError:
            return Identity()  # half-written by a full disk: as different as can be


def run_directory(wanted: Path | None, beside: Path) -> tuple[RunDirectory, str]:
    """The directory that was asked for, else one beside the bundle; made, and known to be writable.

    Where nothing can be written beside the bundle, it is one in the working directory, and that is said.
    """
    if wanted is not None:
        _make(wanted, "choose another directory with --out")
        return RunDirectory(wanted.absolute()), ""
    name = (beside.stem if beside.suffix == ".zip" else beside.name) + SUFFIX
    preferred = beside.absolute().with_name(name)
    try:
        _make(preferred, "")
        return RunDirectory(preferred), ""
    except TorchReproError as exc:
        fallback = Path.cwd() / name
        _make(fallback, "choose a directory that you may write to with --out")
        return RunDirectory(fallback), f"{exc.fact}: using {fallback}"


@contextmanager
def held(directory: RunDirectory) -> Iterator[int]:
    """The lock of a run directory, which goes when every process that holds the descriptor has gone."""
    with open(directory.path / "lock", "a+") as file:
        _lock(file.fileno(), directory.path)
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield file.fileno()


def write_json(path: Path, data: Any) -> None:
    """Write a file in one step: whoever reads it finds the former content or the new one."""
    partial = path.with_name(f".{path.name}.{new_run_id()}.partial")
    try:
        # Not by msgspec, which turns what is not a number into nothing.
        partial.write_text(json.dumps(data, indent=1) + "\n")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _make(path: Path, next_step: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise TorchReproError(f"{path} is a file", next_step=next_step) from None
    except OSError as exc:
        raise TorchReproError(f"cannot make {path}: {exc.strerror}", next_step=next_step) from exc
    if not os.access(path, os.W_OK | os.X_OK):
        raise TorchReproError(f"{path} cannot be written to", next_step=next_step)


def _lock(descriptor: int, path: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as exc:
            if exc.errno in (errno.ENOLCK, errno.ENOTSUP):
                return  # a file system without locks: nothing better can be done there
            holder = _holder(descriptor)
        if (holder and answers(holder)) or time.monotonic() > deadline:
            raise TorchReproError(
                f"another run (process {holder}) is at work in {path}",
                next_step="wait for it, end it, or choose another directory with --out",
            )
        time.sleep(0.05)  # its holder was killed, and the search process that shared the lock is about to go


def _holder(descriptor: int) -> int:
    with suppress(ValueError):
        return int(os.pread(descriptor, 32, 0) or b"0")
    return 0
