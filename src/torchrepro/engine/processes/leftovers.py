"""Find and end the processes that a run has left behind, whoever their parent is by now.

A process that dies of a bug or of `kill -9` ends nobody. What it has started lives on in sessions of its own,
and its parent is then init. So everything that a run starts carries the run's mark in its environment, which
every process inherits and which `/proc` shows.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "TORCHREPRO_RUN_MARK"
_PATIENCE = 2.0
"""Seconds for them to end by themselves: a guard (`guard.py`) may be at work."""
_GRACE = 5.0


def marked(mark: str) -> dict[str, str]:
    """What to add to the environment of a process that must not be left behind."""
    return {MARK: mark}


def end_leftovers(mark: str) -> int:
    """Wait for every process that carries the mark, this one excepted, then kill; how many were killed."""
    ended: set[int] = set()
    started = time.monotonic()
    while (found := _carrying(mark)) and time.monotonic() - started < _PATIENCE + _GRACE:
        if time.monotonic() - started > _PATIENCE:
            for pid in found:
                with suppress(ProcessLookupError, PermissionError):  # ended by itself in the meantime
                    os.kill(pid, signal.SIGKILL)
            ended.update(found)
        time.sleep(0.02)
    return len(ended)


def _carrying(mark: str) -> list[int]:
    """Processes with the mark. Only Linux tells; elsewhere a run's process group has to do."""
    if sys.platform != "linux":
        return []
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue  # gone, or another user's
        if wanted in environ.split(b"\0"):
            found.append(int(entry.name))
    return found
