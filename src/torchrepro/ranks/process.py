"""Process: identifies a rank on its machine, so that its neighbours there can detect that it has ended."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_STATE, _START_TIME = 0, 19
"""Positions in `/proc/PID/stat`, counted from the first field after the name."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process id, and the time it started: ids are reused."""

    rank: int
    pid: int
    started: str
    """As the system counts it; empty where the system does not say."""

    @classmethod
    def own(cls, rank: int) -> Process:
        fields = _fields(os.getpid())
        return cls(rank, os.getpid(), fields[_START_TIME] if fields else "")

    def gone(self) -> bool:
        """Return whether the process has ended, a zombie included. Valid only where `place()` is the same."""
        if not self.started:
            return not answers(self.pid)
        fields = _fields(self.pid)
        return fields is None or fields[_STATE] in "ZX" or fields[_START_TIME] != self.started


def place() -> str:
    """Return where a process id means the same process: a running machine, and a container on it.

    The name of the host would not do: two containers that share a network share it too.
    """
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _fields(pid: int) -> list[str] | None:
    try:
        line = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The second field is the name in brackets, which may hold spaces and brackets itself.
    return line.rpartition(")")[2].split()


def answers(pid: int) -> bool:
    """Return whether a process has this id, a zombie included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
