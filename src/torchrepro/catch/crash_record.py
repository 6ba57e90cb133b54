"""What a process is doing with an unfinished bundle, in a file that outlives the process. Needs no torch."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Flight:
    """The process, what it does ("compile", "run" or "idle") and since when."""

    pid: int
    phase: str
    since: float

    @property
    def seconds(self) -> float:
        return time.time() - self.since


class FlightRecord:
    """Written in place with one system call: it may happen at every call of a compiled function."""

    def __init__(self, bundle: Path) -> None:
        self._path = _record_of(bundle)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, phase: str) -> None:
        text = msgspec.json.encode(Flight(os.getpid(), phase, time.time()))
        os.pwrite(self._descriptor, text.ljust(_WIDTH), 0)

    def remove(self) -> None:
        os.close(self._descriptor)
        self._path.unlink(missing_ok=True)


def read_flight(bundle: Path) -> Flight | None:
    """What is known of an unfinished bundle; None if nothing is."""
    try:
        return msgspec.json.decode(_record_of(bundle).read_bytes(), type=Flight)
    except (OSError, msgspec.DecodeError):
        return None


def forget_flight(bundle: Path) -> None:
    _record_of(bundle).unlink(missing_ok=True)


def _record_of(bundle: Path) -> Path:
    return bundle.with_name(f".{bundle.name}.flight")
