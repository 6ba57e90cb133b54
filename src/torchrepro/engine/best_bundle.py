"""The best so far as a bundle on disk: replaced in one step, and no more often than it is worth.

A kill at any moment leaves the former bundle or the new one. Saving a large repro takes a second or more and
a search finds many bests in a row, so a save waits until the last one has been paid for many times over; a
best that is lost that way is found again without a question, because every verdict on the way is known.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from torchrepro.bundle.load import load_bundle, trust_own
from torchrepro.bundle.read import read_manifest
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict
from torchrepro.script.save_bundle import save_bundle

_SHARE = 0.05
"""Of the time of a search that may go into saving its best."""


@dataclass(eq=False)
class BestBundle:
    """A directory that always holds a whole bundle, once it holds one."""

    path: Path
    _paid_at: float = 0.0
    _waiting: tuple[Repro, Verdict, str] | None = field(default=None, repr=False)

    def keep(self, repro: Repro, verdict: Verdict, run_id: str) -> None:
        """Save a repro as the bundle of this number: now or, if the last save was just now, later."""
        self._waiting = (repro, verdict, run_id)
        if time.monotonic() >= self._paid_at:
            self.flush()

    def flush(self) -> None:
        """Save what is waiting, if anything is."""
        if self._waiting is None:
            return
        (repro, verdict, run_id), self._waiting = self._waiting, None
        started = time.monotonic()
        try:
            fresh = self.path.with_name(f".{self.path.name}.{run_id}")
            save_bundle(repro, fresh, verdict=verdict, run_id=run_id)
            put_in_place(fresh, self.path)
        finally:
            spent = time.monotonic() - started
            self._paid_at = time.monotonic() + spent * (1 / _SHARE - 1)

    def load(self) -> tuple[Repro, str] | None:
        """The repro that a former process has left, and the number of its bundle."""
        if not self.path.exists():
            return None
        manifest = read_manifest(self.path)
        return load_bundle(self.path, trusted=trust_own(manifest)), manifest.run_id

    def clean_up(self) -> None:
        """Put in place what a killed process has finished but not put there; remove what it has not finished.

        Where two directories cannot change places in one step, a kill can fall between the two that it takes.
        """
        beside = sorted(self.path.parent.glob(f".*{self.path.name}.*"))
        whole = [path for path in beside if (path / "manifest.json").exists()]
        if not self.path.exists() and whole:
            whole[-1].rename(self.path)
        remove_unfinished(self.path.parent, self.path.name)


def remove_unfinished(directory: Path, name: str = "") -> None:
    """Remove what killed processes have begun to write in a directory, under hidden names."""
    for path in directory.glob(f".*{name}.*"):
        shutil.rmtree(path, ignore_errors=True)


def put_in_place(fresh: Path, target: Path) -> None:
    """Rename a directory to a name that another one may have; the other one is removed."""
    if not target.exists():
        fresh.rename(target)
        return
    if not _exchange(fresh, target):
        # Not in one step here: the one in the way keeps a name under which `clean_up` finds it.
        former = fresh.with_name(f"{fresh.name}.former")
        target.rename(former)
        fresh.rename(target)
        fresh = former
    shutil.rmtree(fresh, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """renameat2 with RENAME_EXCHANGE; False where the system or the file system does not have it."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    at_cwd, exchange = -100, 2
    arguments = (at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange)
    return rename is not None and rename(*arguments) == 0
