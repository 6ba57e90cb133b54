"""Restrict which files this process may open, by Landlock (Linux 5.13 and later).

A rule is for a file or for everything beneath a directory. What no rule allows fails with EACCES. The
restriction is for this thread and everything that it starts; it cannot be lifted.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION, _BENEATH = 1, 1

_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_FOR_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
_READABLE = _EXECUTE | _READ | _LIST
_TCP = 0b11
_SCOPES = 0b11
"""Abstract sockets and signals."""
ALONE = 3
"""The first version that protects a readable file from being truncated: needed without namespaces."""
SIGNALS = 6
"""The first version that confines signals to the sandbox."""


def version() -> int:
    """Return the version of the kernel's interface; 0 where there is none."""
    return max(0, int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(_VERSION))))


def restrict(*, readable: Iterable[str], writable: Iterable[str], devices: Iterable[str]) -> None:
    """Allow this process to read and execute, to write, or to use as a device, only these. Needs version 1.

    Also without TCP, and without signals to processes outside, as far as the kernel's version has them.
    `seccomp.forbid_new_privileges` has to be called before.
    """
    known = version()
    everything = (1 << 13) - 1
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL)):
        everything |= right if known >= since else 0
    attributes = struct.pack("QQQ", everything, _TCP, _SCOPES)
    attributes = attributes[: 8 if known < 4 else 16 if known < 6 else 24]
    ruleset = _call(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    rights = {_READABLE: readable, everything & ~_IOCTL: writable, _FOR_FILES: devices}
    try:
        for right, paths in rights.items():
            for path in paths:
                _allow(ruleset, path, right & everything)
        _call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what does not exist, or may not be reached, needs no rule
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _FOR_FILES
        _call(
            _ADD, ctypes.c_int(ruleset), ctypes.c_int(1), struct.pack("=Qi", rights, place), ctypes.c_uint(0)
        )
    finally:
        os.close(place)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return result
