"""What a search process and the process that started it tell each other about candidates. Needs no torch.

A message is a frame: its length, and msgpack. Only data of these types is accepted: the search process may be
confined with a stranger's bundle, and what it sends decides nothing outside of a sandbox.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from typing import Any

import msgspec

from torchrepro.engine.processes.child import Outcome
from torchrepro.nouns import __version__
from torchrepro.nouns.errors import HarnessError, TorchReproError

_LENGTH = 8
_LONGEST = 64 << 30
_CHUNK = 1 << 20


class Channel(msgspec.Struct, frozen=True):
    """The ends of the pipes that a search process has, and how many candidates run at the same time."""

    requests: int
    outcomes: int
    workers: int


class Site(msgspec.Struct, frozen=True):
    """What all candidates of a run have in common."""

    run: str
    """An id of the run: a process that has run candidates of one run is not used for another."""
    environ: dict[str, str]
    """Environment variables for the processes that run candidates."""
    confined: bool
    """The bundle is a stranger's, so each candidate runs in a sandbox."""
    versions: dict[str, str]
    """The versions of the driver, which a worker has to have too."""


class Piece(msgspec.Struct, frozen=True):
    """A part of a file: its content, or the digest of a `Blob` that has been sent before."""

    content: bytes = b""
    digest: str = ""


class Blob(msgspec.Struct, frozen=True, tag=True):
    """A large part of files, which several candidates have in common."""

    digest: str
    content: bytes


class Forget(msgspec.Struct, frozen=True, tag=True):
    """No later candidate refers to this blob."""

    digest: str


class Candidate(msgspec.Struct, frozen=True, tag=True):
    """A task (`engine/processes/executor.py`) with its repro as the files of a bundle."""

    number: int
    job: str
    payload: dict[str, Any]
    time_limit: float
    members: dict[str, list[Piece]]

    @property
    def digests(self) -> list[str]:
        """The digests of the blobs that it refers to, each once."""
        found = (piece.digest for pieces in self.members.values() for piece in pieces if piece.digest)
        return list(dict.fromkeys(found))


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """The outcome of this candidate is not needed any more."""

    number: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """How a candidate ended, or why it could not be run at all."""

    number: int
    outcome: Outcome | None = None
    fact: str = ""
    next_step: str = ""


Request = Candidate | Blob | Forget | Cancel


def versions_here() -> dict[str, str]:
    """Return the versions on which verdicts depend and that driver and workers must have in common."""
    return {
        "torchrepro": __version__,
        "torch": importlib.metadata.version("torch"),
        "Python": platform.python_version(),
    }


def require_versions(versions: Mapping[str, str]) -> None:
    """Raise unless this process has the versions of the driver."""
    here = versions_here()
    for name, wanted in versions.items():
        if here.get(name) != wanted:
            raise TorchReproError(
                f"{name} is {here.get(name)}, and {wanted} where the search runs: verdicts could differ",
                next_step="install the same versions of torchrepro, torch and Python on both",
            )


def send(descriptor: int, message: Request | Ended) -> None:
    """Write a message to a pipe."""
    content = msgspec.msgpack.encode(message)
    for part in (len(content).to_bytes(_LENGTH, "little"), content):
        view = memoryview(part)
        while view:
            view = view[os.write(descriptor, view) :]


class Frames:
    """The messages that come through a pipe, in order."""

    def __init__(self, descriptor: int, kind: Any) -> None:
        self.descriptor = descriptor
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._unread = bytearray()

    def read(self) -> bool:
        """Read what is there, at least a byte; return False at the end of the pipe."""
        chunk = os.read(self.descriptor, _CHUNK)
        self._unread += chunk
        return bool(chunk)

    def next(self) -> Any:
        """Return the next message that has been read completely; None if there is none."""
        if len(self._unread) < _LENGTH:
            return None
        length = int.from_bytes(self._unread[:_LENGTH], "little")
        if length > _LONGEST:
            raise HarnessError(f"a message of {length} bytes")
        end = _LENGTH + length
        if len(self._unread) < end:
            return None
        message = self._decoder.decode(memoryview(self._unread)[_LENGTH:end])
        del self._unread[:end]
        return message
