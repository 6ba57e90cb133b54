"""Names that nobody else has: run ids."""

from __future__ import annotations

import os
import secrets
import threading
import time
from datetime import UTC, datetime

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
