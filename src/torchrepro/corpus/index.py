"""A corpus on disk: a directory of bundles, and an index of it in SQLite.

    CORPUS/bundles/ID/bundle/       the bundle, a directory; ID is a digest of its members
    CORPUS/bundles/ID/entry.json    its name, its bucket, the recorded failure
    CORPUS/bundles/ID/replays.jsonl each finished replay, a line
    CORPUS/code/DIGEST.txt          generated code
    CORPUS/runs/ID.jsonl            a run, with which interpreters (`runs.py`)
    CORPUS/index.sqlite             all of this, to be searched

The files are the corpus. The index is made again from them where it is missing or damaged. Several processes
may write: bundles and entries appear by a rename, replays by one append each, and SQLite has its own locks.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.archive import new_run_id, write_in_one_step
from torchrepro.bundle.read import (
    DEFAULT_LIMIT,
    MANIFEST,
    MEMBERS,
    PARTIAL_SUFFIX,
    PROVENANCE,
    open_bundle_files,
    read_manifest,
    read_small_file,
)
from torchrepro.corpus.database import decoded, open_index
from torchrepro.engine.line_file import append_line, read_lines
from torchrepro.engine.other_python import Replayed
from torchrepro.engine.search.run_directory import refuse_link
from torchrepro.nouns.errors import TorchReproError
from torchrepro.report.bucket import Bucket, bucket_in
from torchrepro.report.run_files import Surroundings, surroundings_of, verdict_in

_LARGEST_MEMBER = 1 << 40
_LONGEST_NAME = 200
_OF_MINIFY = ("minimal", "best")
"""Bundles in the directory that `minify` made: the failing one next to it is what is added."""
_ID = re.compile(r"[0-9a-f]{20}")
_INDEX = "index.sqlite"
_OWN_NAMES = (
    "bundles",
    "code",
    "runs",
    *(f"{_INDEX}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")),
)
_STRANGERS = "do not use this corpus: torchrepro makes no links in one"


@dataclass(frozen=True, slots=True)
class Entry:
    """A bundle of a corpus: what is known of it without running it."""

    id: str
    name: str
    bucket: str
    signature: str
    fails: bool
    """Whether the recorded verdict is a failure."""
    culprit: str = ""
    torch: str = ""
    """The version with which it was recorded."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """A finished replay, and where it was made."""

    id: str
    bundle: str
    run: str
    side: int
    host: str
    tools: str
    """The compilers and the processor: what generated code becomes depends on them."""
    torch: str
    commit: str
    replayed: Replayed
    kept: bool = False
    """It was not run: an earlier replay holds, of the same code compiled by the same tools."""
    headers: str = ""
    """Of the torch that it was run with (`Interpreter.headers`)."""


class Corpus(AbstractContextManager["Corpus"]):
    """A corpus that is open. `create` makes the directory; without it a missing one is an error."""

    def __init__(self, directory: Path, *, create: bool = False) -> None:
        self.directory = directory
        self.notes: list[str] = []
        self._bundles = directory / "bundles"
        for name in _OWN_NAMES:
            refuse_link(directory / name, _STRANGERS)
        if not create:
            require_corpus(directory)
        try:
            if directory.exists() and not self._bundles.is_dir() and any(directory.iterdir()):
                raise TorchReproError(
                    f"{directory} is a directory with something else in it",
                    next_step="name a new or an empty directory for the corpus",
                )
            self._bundles.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise TorchReproError(
                f"{directory} cannot be a corpus: {exc.strerror or exc}",
                next_step="name a directory that you may write to",
            ) from exc
        self._path = directory / _INDEX
        self.database = self._opened()

    def __exit__(self, *raised: object) -> None:
        with suppress(sqlite3.Error):
            self.database.close()

    # Bundles.

    def add(self, target: Path) -> tuple[Entry, bool]:
        """Copy a bundle in, unless it is there; return its entry, and whether it is new.

        `target` may be the directory that `minify` made: the failing bundle is kept, in the bucket of its
        minimal one. A bundle that was minified or located since gets the bucket that follows from that.
        """
        around = surroundings_of(target)
        identity, bucket = content_digest(around.bundle), bucket_in(around)
        known = self._read(self._home(identity))
        entry = known or _entry_of(identity, _name_of(around.bundle), around, bucket)
        new = self._copy_in(around.bundle, entry)
        if (bucket.graph or bucket.culprit) and bucket.fingerprint != entry.bucket:
            entry = replace(entry, bucket=bucket.fingerprint, culprit=bucket.culprit)
            told = msgspec.json.encode(entry).decode()
            write_in_one_step(self._home(identity) / "entry.json", told)
            with self.database:
                self.database.execute(
                    "UPDATE bundles SET bucket = ?, culprit = ? WHERE id = ?",
                    (entry.bucket, entry.culprit, identity),
                )
        return entry, new

    def remove(self, identity: str) -> Entry:
        """Remove a bundle, by its id or the beginning of it."""
        entry = self.entry(identity)
        home = self._home(entry.id)
        gone = self._bundles / f".{entry.id}.{new_run_id()}{PARTIAL_SUFFIX}"
        with suppress(FileNotFoundError):
            home.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
        with self.database:
            for table, column in (("bundles", "id"), ("replays", "bundle")):
                self.database.execute(f"DELETE FROM {table} WHERE {column} = ?", (entry.id,))
        return entry

    def entry(self, identity: str) -> Entry:
        """Return the entry with an id, or the only one whose id, name or bucket begins so."""
        found = list(self.entries(f"WHERE {NAMED} ORDER BY id LIMIT 9", identity))
        exact = [entry for entry in found if entry.id == identity]
        if len(exact or found) == 1:
            return (exact or found)[0]
        if not found:
            raise TorchReproError(
                f"no bundle of {self.directory} is called {identity!r}",
                next_step=f"torchrepro corpus list {self.directory} lists them",
            )
        names = ", ".join(entry.id for entry in found)
        raise TorchReproError(f"{identity!r} may be any of {names}", next_step="write more of the id")

    def entries(self, where: str = "ORDER BY id", *values: str) -> Iterator[Entry]:
        """Yield entries, a page of them in memory at a time."""
        with closing(self.database.execute(f"SELECT {_COLUMNS} FROM bundles {where}", values)) as rows:
            for row in rows:
                yield entry_of(row)

    def bundle(self, identity: str) -> Path:
        """Return where the bundle with an id is."""
        return self._home(identity) / "bundle"

    def _home(self, identity: str) -> Path:
        """Return the directory of an id."""
        if not _ID.fullmatch(identity):
            raise TorchReproError(f"{identity!r} is no id of a bundle", next_step="do not use this corpus")
        refuse_link(self._bundles / identity, _STRANGERS)
        return self._bundles / identity

    def count(self) -> int:
        return int(self.database.execute("SELECT count(*) FROM bundles").fetchone()[0])

    # Replays.

    def record(self, done: Recorded) -> None:
        """Store a finished replay: first in its file, then in the index."""
        append_line(self._replays_of(done.bundle), done)
        with self.database:
            self._index_replay(done)

    def _replays_of(self, identity: str) -> Path:
        return self._home(identity) / "replays.jsonl"

    def all_replays(self, identity: str) -> Iterator[Recorded]:
        """Yield all replays of a bundle, in the order in which they ended."""
        return read_lines(self._replays_of(identity), Recorded)

    def replays(self, run: str, bundle: str, side: int) -> list[Replayed]:
        """Return the replays of a bundle in a run."""
        rows = self.database.execute(
            "SELECT replayed FROM replays WHERE bundle = ? AND run = ? AND side = ? ORDER BY id",
            (bundle, run, side),
        )
        return [decoded(row[0], Replayed) for row in rows]

    def keep_code(self, digest: str, text: str) -> None:
        """Keep generated code under its digest."""
        path = self.code(digest)
        if digest and text and not path.exists():
            write_in_one_step(path, text)

    def code(self, digest: str) -> Path:
        return self.directory / "code" / f"{digest}.txt"

    # The index.

    def rebuild(self) -> int:
        """Make the index again from the files; return how many bundles there are."""
        with self.database:
            for table in ("bundles", "replays"):
                self.database.execute(f"DELETE FROM {table}")
            for home in self._bundles.iterdir():
                entry = self._read(home) if _is_home(home) else None
                if entry is not None:
                    self._insert(entry)
                    for done in self.all_replays(entry.id):
                        self._index_replay(done)
        return self.count()

    def merge(self, other: Path) -> tuple[int, int]:
        """Take over the bundles and replays of another corpus; return how many of each were new.

        It may come from a stranger: its files are read, never its index, and no link is followed.
        """
        require_corpus(other)
        new_bundles = new_replays = 0
        for source in sorted((other / "bundles").iterdir()):
            entry = self._read(source) if _is_home(source) else None
            if entry is None:
                continue
            if not _is_intact(source / "bundle", entry.id):
                self.notes.append(f"{entry.id} of {other} is not what its id says: left out")
                continue
            new_bundles += self._copy_in(source / "bundle", entry)
            known = self.database.execute("SELECT id FROM replays WHERE bundle = ?", (entry.id,)).fetchall()
            for done in read_lines(source / "replays.jsonl", Recorded):
                if (done.id,) not in known and done.bundle == entry.id:
                    self.record(done)
                    new_replays += 1
        return new_bundles, new_replays

    def _copy_in(self, bundle: Path, entry: Entry) -> bool:
        """Copy a bundle to its place by one rename; return whether it was not there.

        A copy that is there and damaged is replaced.
        """
        home = self._home(entry.id)
        partial = self._bundles / f".{entry.id}.{new_run_id()}{PARTIAL_SUFFIX}"
        new = False
        try:
            if not home.is_dir():
                copy_members(bundle, partial / "bundle")
                (partial / "entry.json").write_bytes(msgspec.json.encode(entry))
                try:
                    partial.rename(home)
                    new = True
                except OSError:
                    if not home.is_dir():  # else another process was faster, with the same content
                        raise
            elif not _is_intact(home / "bundle", entry.id):
                copy_members(bundle, partial / "bundle")
                with suppress(FileNotFoundError):
                    (home / "bundle").rename(partial / "damaged")
                (partial / "bundle").rename(home / "bundle")
                self.notes.append(f"the copy of {entry.name} ({entry.id}) was damaged, and is replaced")
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        with self.database:
            self._insert(entry)
        return new

    def _read(self, home: Path) -> Entry | None:
        """Return the entry in a directory; if entry.json is lost, the one that follows from the bundle."""
        try:
            entry = msgspec.json.decode(read_small_file(home / "entry.json"), type=Entry)
        except (OSError, msgspec.MsgspecError, ValueError):
            try:
                around = surroundings_of(home / "bundle")
                entry = _entry_of(home.name, home.name, around, bucket_in(around))
            except (TorchReproError, OSError):
                return None
        return entry if entry.id == home.name else None

    def _insert(self, entry: Entry) -> None:
        self.database.execute(
            f"INSERT OR IGNORE INTO bundles ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            tuple(asdict(entry).values()),
        )

    def _index_replay(self, done: Recorded) -> None:
        replayed = done.replayed
        self.database.execute(
            "INSERT OR IGNORE INTO replays VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(done.id, done.bundle, done.run, done.side, done.host, done.tools, done.torch, done.commit),
                *(msgspec.json.encode(replayed).decode(), replayed.code, done.headers, done.kept),
            ),
        )
        if replayed.seconds and not done.kept:
            self.database.execute(
                "UPDATE bundles SET seconds = ? WHERE id = ?", (replayed.seconds, done.bundle)
            )

    def _opened(self) -> sqlite3.Connection:
        fresh = not self._path.exists()
        try:
            database = open_index(self._path)
        except sqlite3.OperationalError as exc:
            raise TorchReproError(
                f"cannot open {self._path}: {exc}",
                next_step="check its permissions, and that the disk has room",
            ) from exc
        except sqlite3.DatabaseError as exc:
            self.notes.append(f"the index cannot be read ({exc}) and is made again from the bundles")
            for suffix in ("", "-wal", "-shm"):
                with suppress(OSError):
                    os.replace(f"{self._path}{suffix}", f"{self._path}.damaged{suffix}")
            database, fresh = open_index(self._path), True
        self.database = database
        if fresh:
            self.rebuild()
        return database


NAMED = "?1 != '' AND (substr(id, 1, length(?1)) = ?1 OR name = ?1 OR substr(bucket, 1, length(?1)) = ?1)"
"""Of SQL: a bundle with this id, name or bucket, or one that begins so."""
_COLUMNS = "id, name, bucket, signature, fails, culprit, torch, seconds"


def _is_home(path: Path) -> bool:
    return _ID.fullmatch(path.name) is not None and not path.is_symlink()


def bundles_at(path: Path) -> list[Path]:
    """Return the bundles in a directory of bundles; any other path as it is, for `Corpus.add` to judge."""
    if not path.is_dir() or (path / MANIFEST).exists():
        return [path]
    found = sorted(one.parent for one in path.glob(f"*/{MANIFEST}") if one.parent.name not in _OF_MINIFY)
    return found or [path]


def require_corpus(directory: Path) -> None:
    """Raise if a directory is no corpus."""
    if not (directory / "bundles").is_dir():
        raise TorchReproError(
            f"{directory} is no corpus", next_step="torchrepro corpus add CORPUS BUNDLE... makes one"
        )


def entry_of(row: Sequence[Any]) -> Entry:
    """Return the entry in a row that begins with the columns of `bundles`."""
    return Entry(row[0], row[1], row[2], row[3], bool(row[4]), row[5], row[6], row[7])


def _entry_of(identity: str, name: str, around: Surroundings, bucket: Bucket) -> Entry:
    manifest = read_manifest(around.bundle)
    verdict = verdict_in(manifest.verdict)
    expected = manifest.expected.kind if manifest.expected else verdict.kind if verdict else None
    return Entry(
        *(identity, name, bucket.fingerprint, bucket.signature),
        expected is not None and expected.fails,
        bucket.culprit,
        manifest.environment.torch if manifest.environment else "",
        verdict.seconds if verdict is not None else 0.0,
    )


def content_digest(bundle: Path) -> str:
    """Return the id of a bundle: a digest of its members, the same for a directory and a zip of it."""
    digest = hashlib.sha256()
    with open_bundle_files(bundle) as files:
        for name in (name for name in MEMBERS if name in files):
            own = hashlib.sha256()
            for piece in files.pieces(name, DEFAULT_LIMIT if files.is_packed(name) else _LARGEST_MEMBER):
                own.update(piece)
            digest.update(f"{name} {own.hexdigest()}\n".encode())
    return digest.hexdigest()[:20]


def _is_intact(bundle: Path, identity: str) -> bool:
    try:
        return content_digest(bundle) == identity
    except (TorchReproError, OSError):
        return False


def copy_members(bundle: Path, target: Path) -> None:
    """Copy the members of a bundle, and nothing else that may be in it; signatures stay valid."""
    target.mkdir(parents=True)
    with open_bundle_files(bundle) as files:
        for name in (name for name in (*MEMBERS, PROVENANCE) if name in files):
            limit = DEFAULT_LIMIT if files.is_packed(name) else _LARGEST_MEMBER
            with (target / name).open("xb") as file:
                for piece in files.pieces(name, limit):
                    file.write(piece)
                file.flush()
                if name == MANIFEST:
                    os.fsync(file.fileno())


def _name_of(bundle: Path) -> str:
    name = bundle.resolve().name
    return name[:_LONGEST_NAME].encode(errors="replace").decode()
