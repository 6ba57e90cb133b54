"""Store what a search has found out: verdicts in an SQLite database, the best and others as bundles.

A killed process leaves every verdict that it had stored, whole. A database that is damaged or of another
format is put aside, and one that can no longer be written (the disk is full) costs a warning. A wrong verdict
is never given: each row carries a digest.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import sqlite3
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import msgspec

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.load import load_bundle, trust_own
from torchrepro.bundle.read import read_manifest
from torchrepro.engine.baseline import Failure
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Signature, Verdict
from torchrepro.script.save_bundle import save_bundle


class Store(Protocol):
    """Remembers verdicts, so that nothing is asked twice, and the best, so that nothing is lost."""

    def verdict(self, key: str) -> Verdict | None:
        """The verdict on the candidate with this canonical key, if it is known."""
        ...

    def remember(self, key: str, verdict: Verdict, *, pass_name: str) -> None:
        """Keep a verdict, so that it outlives the process."""
        ...

    def keep_best(self, repro: Repro, verdict: Verdict) -> None:
        """Keep the best repro so far, so that it outlives the process."""
        ...

    def also_seen(self, repro: Repro, verdict: Verdict) -> None:
        """Keep a repro that fails in another way; of each way the first."""
        ...


class MemoryStore:
    """A store for one process."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.best: tuple[Repro, Verdict] | None = None
        self.others: list[tuple[Repro, Verdict]] = []

    def verdict(self, key: str) -> Verdict | None:
        return self.verdicts.get(key)

    def remember(self, key: str, verdict: Verdict, *, pass_name: str) -> None:
        self.verdicts[key] = verdict

    def keep_best(self, repro: Repro, verdict: Verdict) -> None:
        self.best = (repro, verdict)

    def also_seen(self, repro: Repro, verdict: Verdict) -> None:
        if all(Failure.of(known) != Failure.of(verdict) for _, known in self.others):
            self.others.append((repro, verdict))


FORMAT = "1"
_OTHERS = 20
"""Bundles of other failures: each can be as large as the original."""

_TABLES = (
    "CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, verdict TEXT NOT NULL, digest TEXT NOT NULL, "
    "pass TEXT NOT NULL, seconds REAL NOT NULL, at REAL NOT NULL)",
)


class SqliteStore:
    """A store that outlives its process. Used by one process: forked children leave it alone."""

    def __init__(self, path: Path, *, save_best_to: Path, also_seen_to: Path) -> None:
        self.path = path
        self.notes: list[str] = []
        """What could not be kept or not be used, in words."""
        self._also_seen_to = also_seen_to
        self._best = BestBundle(save_best_to)
        self._process = os.getpid()
        self._verdicts: dict[str, Verdict] = {}
        self._others: set[Failure] = set()
        self._database: sqlite3.Connection | None = self._opened()
        self._attempt("finish what was left of the best", self._best.clean_up)
        remove_unfinished(also_seen_to)

    def verdict(self, key: str) -> Verdict | None:
        if key not in self._verdicts:
            found = self._attempt("read a verdict", lambda: self._read(key))
            if found is None:
                return None
            self._verdicts[key] = found
        return self._verdicts[key]

    def remember(self, key: str, verdict: Verdict, *, pass_name: str) -> None:
        self._verdicts[key] = verdict
        self._attempt("write a verdict", lambda: self._write(key, verdict, pass_name))

    def keep_best(self, repro: Repro, verdict: Verdict) -> None:
        number = new_run_id()
        # The verdict first: a bundle whose verdict is not known is nothing to go on from.
        self.remember(_key_of_bundle(number), verdict, pass_name="best")
        self._attempt("save the best", lambda: self._best.keep(repro, verdict, number))

    def best(self) -> tuple[Repro, Verdict] | None:
        """The best that a former process has left, with its verdict; None where there is none to trust."""
        loaded = self._attempt("read the best", self._best.load)
        if loaded is None:
            return None
        repro, number = loaded
        verdict = self.verdict(_key_of_bundle(number))
        return None if verdict is None else (repro, verdict)

    def also_seen(self, repro: Repro, verdict: Verdict) -> None:
        failure = Failure.of(verdict)
        if failure in self._others or len(self._others) >= _OTHERS:
            return
        self._others.add(failure)
        target = self._also_seen_to / f"{verdict.kind.value}-{_digest(str(failure))[:8]}"
        if not target.exists():
            other = replace(repro, expected=Signature.of(verdict))
            self._attempt("save another failure", lambda: save_bundle(other, target, verdict=verdict))

    def close(self) -> None:
        """Save what is still waiting, and leave one file instead of three."""
        self._attempt("save the best", self._best.flush)
        if self._database is not None:
            self._attempt("close the database", self._database.close)
            self._database = None

    def __enter__(self) -> SqliteStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # The database.

    def _opened(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            database = self._usable()
            database.execute("BEGIN IMMEDIATE")  # all of it or nothing, for the next process to find
            for table in _TABLES:
                database.execute(table)
            database.execute("INSERT OR REPLACE INTO about VALUES ('format', ?)", (FORMAT,))
            database.execute("COMMIT")
        except (sqlite3.Error, OSError) as exc:
            raise TorchReproError(
                f"cannot keep verdicts in {self.path}: {exc}",
                next_step="choose a directory that you may write to with --out",
            ) from exc
        return database

    def _usable(self) -> sqlite3.Connection:
        """The database as it is, or a new one in its place."""
        if self.path.exists():
            try:
                database = _connected(self.path)
                why = _why_not(database)
                if not why:
                    return database
                database.close()
            except sqlite3.OperationalError:
                raise  # nothing is wrong with its content: it cannot be opened, read or written here
            except sqlite3.DatabaseError as exc:
                why = f"it is damaged ({exc})"
            self._put_aside(why)
        return _connected(self.path)

    def _put_aside(self, why: str) -> None:
        for suffix in ("", "-wal", "-shm"):
            file = self.path.with_name(self.path.name + suffix)
            if file.exists():
                os.replace(file, self.path.with_name(f"{self.path.name}.unused{suffix}"))
        self._note(f"the verdicts in {self.path} are not used: {why}")

    def _read(self, key: str) -> Verdict | None:
        if self._database is None:
            return None
        row = self._database.execute("SELECT verdict, digest FROM verdicts WHERE key = ?", (key,)).fetchone()
        if row is None or row[1] != _digest(key + row[0]):
            return None
        return msgspec.convert(json.loads(row[0]), Verdict)

    def _write(self, key: str, verdict: Verdict, pass_name: str) -> None:
        if self._database is None:
            return
        # Not msgspec's JSON: it has no inf and no nan, and errors are often just that.
        text = json.dumps(msgspec.to_builtins(verdict))
        row = (key, text, _digest(key + text), pass_name, verdict.seconds, time.time())
        self._database.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?, ?, ?)", row)

    def _attempt(self, what: str, action: Callable[[], Any]) -> Any:
        """Do something on the disk; where that fails, say so once and go on with what is in memory."""
        if os.getpid() != self._process:
            raise HarnessError("the store of a search was used in a child of it")
        try:
            return action()
        except (sqlite3.Error, OSError, TorchReproError, msgspec.ValidationError, ValueError) as exc:
            self._note(f"could not {what}: {exc}")
            return None

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
            warnings.warn(note, stacklevel=4)


def _connected(path: Path) -> sqlite3.Connection:
    """In WAL mode a writer that is killed leaves no half-written page; each statement is a transaction."""
    database = sqlite3.connect(path, isolation_level=None, timeout=5.0)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        database.close()
        raise
    return database


def _why_not(database: sqlite3.Connection) -> str:
    """Why the verdicts in a database cannot be used; empty where they can."""
    try:
        found = database.execute("PRAGMA quick_check").fetchone()[0]
        if found == "ok" and not database.execute("SELECT * FROM sqlite_master").fetchall():
            return ""  # its writer was killed before the first word
        about = dict(database.execute("SELECT name, value FROM about"))
    except sqlite3.DatabaseError as exc:
        return f"it is damaged ({exc})"
    if found != "ok":
        return f"it is damaged ({found})"
    return "" if about.get("format") == FORMAT else "it was written by another version of torchrepro"


def _key_of_bundle(number: str) -> str:
    return f"bundle {number}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


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
        written = sorted(self.path.parent.glob(f".*{self.path.name}.*"))
        whole = [path for path in written if (path / "manifest.json").exists()]
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
