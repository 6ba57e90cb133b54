"""What the watch does where the system refuses: another directory for bundles, file descriptors in reserve.

Needs no torch.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import tempfile
from contextlib import suppress
from pathlib import Path

GO_ELSEWHERE = frozenset(
    {
        *(errno.EPERM, errno.EACCES, errno.EROFS),
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE),
        *(errno.ENOENT, errno.ENOTDIR),  # somebody has removed the directory, or its parent
    }
)
"""Errors of one directory or disk, which another one need not have."""
OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
_RESERVE = 8
_ENOUGH = 128
"""Below this limit of descriptors none is reserved: the program may need every one."""


def errno_of(exc: BaseException | None) -> int | None:
    """Return the number of the system's error that an exception is, or was raised from; None without one.

    The exception being handled is not asked: it is the user's.
    """
    while exc is not None:
        if isinstance(exc, OSError) and exc.errno is not None:
            return exc.errno
        exc = exc.__cause__
    return None


def elsewhere() -> Path:
    """Return the directory for bundles whose own one cannot be written to; OSError if there is none.

    It is in the temporary directory, where other users may have made one of that name: theirs is refused.
    """
    place = Path(tempfile.gettempdir()) / f"torchrepro-out-{os.geteuid()}"
    with suppress(FileExistsError):
        place.mkdir(mode=0o700)
    about = place.lstat()
    if about.st_uid != os.geteuid() or place.is_symlink():
        raise PermissionError(errno.EACCES, "it belongs to another user", str(place))
    return place


def places_of(directory: Path) -> tuple[Path, ...]:
    """Return where the bundles of a run may be: its directory, and the one elsewhere if there is any."""
    other = Path(tempfile.gettempdir()) / f"torchrepro-out-{os.geteuid()}"
    return (directory, other) if other != directory and other.is_dir() else (directory,)


class Reserve:
    """File descriptors that are released when the process has no other left, to write a bundle.

    They have high numbers, so that the program gets those it would get without them.
    """

    def __init__(self) -> None:
        self._descriptors: list[int] = []
        self.refill()

    def refill(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < _ENOUGH and soft != resource.RLIM_INFINITY:
            return
        lowest = (soft if 0 < soft < 1 << 16 else 1 << 16) - 2 * _RESERVE
        with suppress(OSError):
            first = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            try:
                while len(self._descriptors) < _RESERVE:
                    self._descriptors.append(fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, lowest))
            finally:
                os.close(first)

    def release(self) -> bool:
        """Close them; return whether there were any."""
        released = bool(self._descriptors)
        for descriptor in self._descriptors:
            with suppress(OSError):  # the program has closed all descriptors that it does not know
                os.close(descriptor)
        self._descriptors.clear()
        return released
