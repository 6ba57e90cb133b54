"""End what a killed process has left behind: orphans of a run, and their temporary files.

`kill -9` leaves no time to clean up, and the compilers that a child has started do not die with it. So
everything that a run starts carries the run's mark in its environment, which every process inherits and
`/proc` shows, and the names of its temporary directories carry it too: `end_leftovers` finds both, whatever
the parent of a process is by now. The command does that when its search process has ended, and before it
starts one: that finds what is left if both were killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

MARK = "TORCHREPRO_RUN_MARK"
"""Set to the mark of a run in the environment of what must not be left behind."""
_TERM_SECONDS = 2.0
_GRACE = 5.0


def scratch_directory() -> Path:
    """Make a directory for temporary files, which is removed with the leftovers of this run."""
    return Path(tempfile.mkdtemp(prefix=_prefix(os.environ.get(MARK, "unmarked"))))


def end_leftovers(mark: str) -> int:
    """End every process that carries the mark, this one excepted, and return how many there were.

    First politely, as in `child.end_group`. Only Linux tells the environment of a process.
    """
    ended: set[int] = set()
    started = time.monotonic()
    while (found := _carrying(mark)) and time.monotonic() - started < _TERM_SECONDS + _GRACE:
        late = time.monotonic() - started > _TERM_SECONDS
        for pid in found if late else found - ended:
            with suppress(ProcessLookupError, PermissionError):  # ended by itself in the meantime
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        ended |= found
        time.sleep(0.02)
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix(mark)}*"):
        shutil.rmtree(path, ignore_errors=True)
    return len(ended)


def _prefix(mark: str) -> str:
    return f"torchrepro-{mark}-"


def _carrying(mark: str) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir() if sys.platform == "linux" else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue  # gone, or another user's
        if f"{MARK}={mark}".encode() in environ.split(b"\0"):
            found.add(int(entry.name))
    return found
