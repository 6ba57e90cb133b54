"""Files of JSON, a value a line, to which several processes append; a process may be killed at any moment."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

Value = TypeVar("Value")


def append_line(path: Path, value: Any) -> None:
    """Append a value."""
    # The line before lacks its end if its writer was killed.
    append(path, b"\n" + msgspec.json.encode(value, enc_hook=str) + b"\n")


def append(path: Path, lines: bytes) -> None:
    """Append lines: in one write on a descriptor that appends, so that lines of processes do not mix."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o644)
    try:
        os.write(descriptor, lines)
    finally:
        os.close(descriptor)


def read_lines(path: Path, kind: type[Value]) -> Iterator[Value]:
    """Yield the values of this kind; what is no such line is left out, and so are links and missing files."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    with os.fdopen(descriptor, "rb") as lines:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            for line in lines:
                with suppress(msgspec.MsgspecError, ValueError):
                    yield decode(line, kind)


def decode(text: str | bytes, kind: type[Value]) -> Value:
    """Return the value in a line."""
    return msgspec.json.decode(text, type=kind, dec_hook=lambda wanted, given: wanted(given))
