"""Confinement: what a confined command may read, write and use, as data. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

INSIDE = "TORCHREPRO_IN_SANDBOX"
"""Environment variable of everything that runs in a sandbox: what that starts is confined already."""
UNSCOPED_SIGNALS = "TORCHREPRO_SANDBOX_UNSCOPED_SIGNALS"
"""Environment variable where the kernel does not confine signals: candidates give up sending them."""
PLAIN_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom"))
"""Devices that every process may use."""


class Kind(Enum):
    """The ways to confine a process."""

    AUTO = "auto"
    """Namespaces where they are allowed, in addition to Landlock and seccomp."""
    NAMESPACES = "namespaces"
    LANDLOCK = "landlock"
    """Landlock and seccomp alone."""
    BUBBLEWRAP = "bubblewrap"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a confined command and everything that it starts may use."""

    memory: int
    """Bytes, of each process and of all together."""
    disk: int
    """Bytes of files, of each and of all together."""
    files: int
    """Open files of a process."""
    processes: int
    """Processes and, where the kernel counts them, threads."""
    cpu_seconds: int
    """Processor time of a process. The time of a run is the parent's business."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """A command and what it may do."""

    kind: Kind
    command: tuple[str, ...]
    scratch: str
    """The only directory that it may write to; holds `home`."""
    home: str
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    devices: tuple[str, ...]
    """Device files that it may read, write and control."""
    limits: Limits
    reports: int
    """The descriptor of the pipe for reports."""
    passed: tuple[int, ...]
    """The descriptors that the command has in addition to the standard ones."""
    parent: int
    leaf: bool
    """The command judges one bundle itself: it need not kill other processes."""

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Confinement:
        return msgspec.json.decode(text, type=cls)
