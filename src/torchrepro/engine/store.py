"""Store the results of a search: verdicts in an SQLite database, the best and other failures as bundles.

Verdicts survive when the process is killed. A damaged database is renamed and not used, and one that can no
longer be written (the disk is full) causes a warning. Each row has a digest, so that no damaged verdict is
returned.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.load import load_verified
from torchrepro.bundle.read import read_manifest
from torchrepro.engine.baseline import Failure
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Signature, Verdict
from torchrepro.script.save_bundle import save_bundle

_OTHERS = 20
"""Limit of bundles of other failures: each can be as large as the original."""
_SHARE = 0.05
"""Share of a search's time that may be spent on saving its best."""
_TABLE = (
    "CREATE TABLE IF NOT EXISTS known (key TEXT PRIMARY KEY, verdict TEXT NOT NULL, digest TEXT NOT NULL)"
)


class Store:
    """Stores verdicts, so that no query is run twice, and the best repro.

    This one lasts as long as its process.
    """

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.others: dict[Failure, Verdict] = {}
        """The first verdict of each other failure."""

    def verdict(self, key: str) -> Verdict | None:
        """Return the verdict on the candidate with this canonical key, or None."""
        return self.verdicts.get(key)

    def remember(self, key: str, verdict: Verdict) -> None:
        self.verdicts[key] = verdict

    def forget_passes(self) -> None:
        """Forget the verdicts on candidates that do not fail: a flaky failure may show in another run."""
        self.verdicts = {key: verdict for key, verdict in self.verdicts.items() if verdict.fails}

    def keep_best(self, repro: Repro, verdict: Verdict) -> None:
        """Keep the best repro so far, if this store outlives its process."""

    def also_seen(self, repro: Repro, verdict: Verdict) -> bool:
        """Keep a repro that fails in another way; return whether it is the first with that failure."""
        return self.others.setdefault(Failure.of(verdict), verdict) is verdict


def store_knowing(path: Path) -> Store:
    """Return a store in memory with the verdicts of another search's database, if it can be read."""
    store = Store()
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        with closing(database):
            for key, verdict in _sound(database):
                store.remember(key, verdict)
    except (sqlite3.Error, ValueError, msgspec.ValidationError) as exc:
        warnings.warn(f"the verdicts in {path} are not used: {exc}", stacklevel=2)
    return store


def _sound(database: sqlite3.Connection) -> Iterator[tuple[str, Verdict]]:
    """Yield the verdicts whose rows are not damaged, by key."""
    for key, text, digest in database.execute("SELECT * FROM known"):
        if digest == _digest(key + text):
            yield key, msgspec.convert(json.loads(text), Verdict)


class SqliteStore(Store, AbstractContextManager["SqliteStore"]):
    """A store that outlives its process. Only one process may use it: forked children must not.

    The best is saved as a bundle: `best_to` is always complete, if it exists.
    """

    def __init__(self, path: Path, *, best_to: Path, also_seen_to: Path) -> None:
        super().__init__()
        self.path = path
        self.notes: list[str] = []
        """Messages about what could not be stored or used."""
        self._best_to, self._also_seen_to = best_to, also_seen_to
        self._process = os.getpid()
        self._waiting: tuple[Repro, Verdict, str] | None = None
        """The best, if it is not saved yet, and the run id of its bundle."""
        self._paid_at = 0.0
        self._database: sqlite3.Connection | None = self._opened()
        self._attempt("finish what was left of the best", self._clean_up)

    def verdict(self, key: str) -> Verdict | None:
        if key not in self.verdicts:
            found = self._attempt("read a verdict", lambda: self._read(key))
            if found is None:
                return None
            self.verdicts[key] = found
        return self.verdicts[key]

    def remember(self, key: str, verdict: Verdict) -> None:
        super().remember(key, verdict)
        # Not msgspec's JSON: it has no inf and no nan, which errors often are.
        text = json.dumps(msgspec.to_builtins(verdict))
        row = (key, text, _digest(key + text))
        self._attempt(
            "write a verdict", lambda: self._execute("INSERT OR REPLACE INTO known VALUES (?, ?, ?)", row)
        )

    def forget_passes(self) -> None:
        kept = {key: verdict for key, verdict in self._all() if verdict.fails}
        self._attempt("forget verdicts", lambda: self._execute("DELETE FROM known", ()))
        self.verdicts = {}
        for key, verdict in kept.items():
            self.remember(key, verdict)

    def keep_best(self, repro: Repro, verdict: Verdict) -> None:
        """Save a repro as the best: now or, if the last save was recent, later."""
        number = new_run_id()
        # The verdict first: a bundle without its verdict could not be used.
        self.remember(f"bundle {number}", verdict)
        self._waiting = (repro, verdict, number)
        if time.monotonic() >= self._paid_at:
            self._attempt("save the best", self._save_best)

    def best(self) -> tuple[Repro, Verdict] | None:
        """Return the best that an earlier process saved, with its verdict; None if either cannot be read."""
        if not self._best_to.exists():
            return None
        loaded = self._attempt("read the best", self._load_best)
        if loaded is None:
            return None
        repro, number = loaded
        verdict = self.verdict(f"bundle {number}")
        return None if verdict is None else (repro, verdict)

    def also_seen(self, repro: Repro, verdict: Verdict) -> bool:
        if len(self.others) >= _OTHERS or not super().also_seen(repro, verdict):
            return False
        target = self._also_seen_to / f"{verdict.kind.value}-{_digest(str(Failure.of(verdict)))[:8]}"
        if not target.exists():
            other = replace(repro, expected=Signature.of(verdict))
            self._attempt("save another failure", lambda: save_bundle(other, target, verdict=verdict))
        return True

    def close(self) -> None:
        """Save the best if it is not saved yet, and close the database, which merges its three files."""
        self._attempt("save the best", self._save_best)
        if self._database is not None:
            self._attempt("close the database", self._database.close)
            self._database = None

    def __exit__(self, *raised: object) -> None:
        self.close()

    # The database.

    def _opened(self) -> sqlite3.Connection:
        """Open the database; if it is damaged, rename it and create a new one."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                return _connected(self.path)
            except sqlite3.OperationalError:
                raise  # its content is not damaged: it cannot be opened, read or written
            except sqlite3.DatabaseError as exc:
                for suffix in ("", "-wal", "-shm"):
                    file = self.path.with_name(self.path.name + suffix)
                    if file.exists():
                        os.replace(file, self.path.with_name(f"{self.path.name}.unused{suffix}"))
                self._note(f"the verdicts in {self.path} are not used: it is damaged ({exc})")
            return _connected(self.path)
        except (sqlite3.Error, OSError) as exc:
            raise TorchReproError(
                f"cannot keep verdicts in {self.path}: {exc}",
                next_step="choose a directory that you may write to with --out",
            ) from exc

    def _execute(self, statement: str, values: tuple[str, ...]) -> Any:
        """Execute a statement and return its first row, or None."""
        return None if self._database is None else self._database.execute(statement, values).fetchone()

    def _read(self, key: str) -> Verdict | None:
        row = self._execute("SELECT verdict, digest FROM known WHERE key = ?", (key,))
        if row is None or row[1] != _digest(key + row[0]):
            return None
        return msgspec.convert(json.loads(row[0]), Verdict)

    def _all(self) -> list[tuple[str, Verdict]]:
        rows = None if self._database is None else self._attempt("read verdicts", self._rows)
        return list(self.verdicts.items()) if rows is None else rows

    def _rows(self) -> list[tuple[str, Verdict]]:
        assert self._database is not None
        return list(_sound(self._database))

    # The best.

    def _save_best(self) -> None:
        """Save the best, if it is not saved yet."""
        if self._waiting is None:
            return
        (repro, verdict, number), self._waiting = self._waiting, None
        started = time.monotonic()
        try:
            fresh = self._best_to.with_name(f".{self._best_to.name}.{number}")
            save_bundle(repro, fresh, verdict=verdict, run_id=number)
            put_in_place(fresh, self._best_to)
        finally:
            spent = time.monotonic() - started
            self._paid_at = time.monotonic() + spent * (1 / _SHARE - 1)

    def _load_best(self) -> tuple[Repro, str]:
        manifest = read_manifest(self._best_to)
        return load_verified(self._best_to), manifest.run_id

    def _clean_up(self) -> None:
        """Rename the complete best of a killed process into place; remove incomplete bundles."""
        written = sorted(self._best_to.parent.glob(f".*{self._best_to.name}.*"))
        whole = [path for path in written if (path / "manifest.json").exists()]
        if not self._best_to.exists() and whole:
            whole[-1].rename(self._best_to)
        for path in (*written, *self._also_seen_to.glob(".*")):
            shutil.rmtree(path, ignore_errors=True)

    def _attempt(self, what: str, action: Callable[[], Any]) -> Any:
        """Run an action on the disk; if it fails, warn once and continue with what is in memory."""
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
    """Connect in WAL mode, where a killed writer leaves no half-written page; statements autocommit."""
    database = sqlite3.connect(path, isolation_level=None, timeout=5.0)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        found = database.execute("PRAGMA quick_check").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        database.execute(_TABLE)
    except sqlite3.Error:
        database.close()
        raise
    return database


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def put_in_place(fresh: Path, target: Path) -> None:
    """Rename a directory to `target` and remove the directory that was there, if any.

    The old one gets a name under which `SqliteStore` finds it if this process is killed in between.
    """
    former = fresh.with_name(f"{fresh.name}.former")
    if target.exists():
        target.rename(former)
    fresh.rename(target)
    shutil.rmtree(former, ignore_errors=True)
