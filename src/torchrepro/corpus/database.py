"""The index of a corpus in SQLite: its tables, and how it is opened.

An index may come along with a stranger's corpus. It is used only where it is torchrepro's in form (the same
tables and nothing else, in each column what belongs there); otherwise it is made again from the bundles.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from torchrepro.engine.line_file import decode
from torchrepro.nouns.errors import TorchReproError

Value = TypeVar("Value")
_SECONDS_FOR_LOCK = 60.0
_FORMAT = 4
"""Of the tables: an index of another format is made again."""


def _text(*columns: str) -> str:
    return ", ".join(f"{name} TEXT NOT NULL CHECK (typeof({name}) = 'text')" for name in columns)


def _integer(*columns: str) -> str:
    return ", ".join(f"{name} INTEGER NOT NULL CHECK (typeof({name}) = 'integer')" for name in columns)


_TABLES = {
    "bundles": f"""CREATE TABLE bundles (
        id TEXT PRIMARY KEY CHECK (length(id) = 20 AND id NOT GLOB '*[^0-9a-f]*'),
        {_text("name", "bucket", "signature")}, {_integer("fails")}, {_text("culprit", "torch")},
        seconds REAL NOT NULL CHECK (typeof(seconds) = 'real')) WITHOUT ROWID""",
    "by_bucket": "CREATE INDEX by_bucket ON bundles (bucket)",
    "replays": f"""CREATE TABLE replays (
        id TEXT PRIMARY KEY CHECK (typeof(id) = 'text'), {_text("bundle", "run")}, {_integer("side")},
        {_text("host", "tools", "torch", "commit_", "replayed", "code", "headers")}, {_integer("kept")})""",
    "by_bundle": "CREATE INDEX by_bundle ON replays (bundle, run, side)",
    "runs": f"""CREATE TABLE runs (
        id TEXT PRIMARY KEY CHECK (typeof(id) = 'text'), {_text("run", "resume", "host")},
        {_integer("pid", "finished")}) WITHOUT ROWID""",
    "gates": f"""CREATE TABLE gates (
        {_text("run", "bundle")}, {_integer("side")}, {_text("code")},
        PRIMARY KEY (run, bundle, side)) WITHOUT ROWID""",
}


def open_index(path: Path) -> sqlite3.Connection:
    """Open an index, and make its tables in a new one; sqlite3.DatabaseError for one that is not as above."""
    database = sqlite3.connect(path, timeout=_SECONDS_FOR_LOCK)
    try:
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("BEGIN IMMEDIATE")
        query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
        if not (found := dict(database.execute(query).fetchall())):
            for statement in _TABLES.values():
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {_FORMAT}")
        elif found != _TABLES or database.execute("PRAGMA user_version").fetchone()[0] != _FORMAT:
            raise sqlite3.DatabaseError("another version of torchrepro has written it")
        database.commit()
        checked = database.execute("PRAGMA quick_check(1)").fetchone()[0]  # constraints too
        if checked != "ok":
            raise sqlite3.DatabaseError(checked)
    except sqlite3.Error:
        database.close()
        raise
    return database


def decoded(text: Any, kind: type[Value]) -> Value:
    """Return the value that a row holds as JSON."""
    try:
        return decode(text, kind)
    except (msgspec.MsgspecError, ValueError) as exc:
        raise TorchReproError(
            f"the index of the corpus is damaged ({exc})",
            next_step="remove its index.sqlite: it is made again from the bundles",
        ) from exc
