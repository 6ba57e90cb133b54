"""Whether the watch is on: it is off for whatever a check itself compiles and runs.

One switch for the process, not one for each thread: autograd runs backward in threads of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_checks = 0


def is_checking() -> bool:
    """Whether a check is going on, so that the watch must look away."""
    return _checks > 0


@contextmanager
def looking_away() -> Iterator[None]:
    """The body is a check of our own: nothing in it is watched."""
    global _checks
    with _lock:
        _checks += 1
    try:
        yield
    finally:
        with _lock:
            _checks -= 1
