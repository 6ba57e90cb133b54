"""Names that nobody else has: run ids, and paths that do not exist yet."""

from __future__ import annotations

import os
import secrets
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

_lock = threading.Lock()
_last_microsecond = 0


def new_run_id() -> str:
    """Sorts by time, even within one microsecond of one process; never the same in two processes or hosts.

    >>> new_run_id()  # doctest: +SKIP
    '20260131-094502-118034-p4711-5f0c9a1e'
    """
    global _last_microsecond
    with _lock:
        microsecond = max(time.time_ns() // 1000, _last_microsecond + 1)
        _last_microsecond = microsecond
    moment = datetime.fromtimestamp(microsecond // 1_000_000, UTC)
    # Randomness from the system: a forked child inherits the state of Python's own generator.
    return f"{moment:%Y%m%d-%H%M%S}-{microsecond % 1_000_000:06d}-p{os.getpid()}-{secrets.token_hex(4)}"


def unused_path(directory: Path, stem: str, suffix: str = "") -> Path:
    """`stem`, `stem-2`, `stem-3`, ...: the first that does not exist.

    Another process may take it before you do: `write_bundle_files` then refuses, and the next call gives the
    next name.
    """
    candidate, count = directory / f"{stem}{suffix}", 1
    while os.path.lexists(candidate):
        count += 1
        candidate = directory / f"{stem}-{count}{suffix}"
    return candidate
