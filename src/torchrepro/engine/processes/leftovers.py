"""End what a killed process has left behind: process groups, their scratch directory, orphans of a run.

`kill -9` leaves no time to clean up, and the compilers that a child has started do not die with it.

- A `Guard` is a process that is told of every group over a pipe; when the pipe closes, it ends the groups
  that were not called off. It runs this file with the standard library alone, and starts in 15 ms.
- Everything that a run starts carries the run's mark in its environment, which every process inherits and
  which `/proc` shows: `end_leftovers` finds orphans by it, whatever their parent is by now.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK = "TORCHREPRO_RUN_MARK"
"""Set to the mark of a run in the environment of what must not be left behind."""
_WAIT_SECONDS = 2.0
"""Seconds for them to end by themselves: a guard may be at work."""
_GRACE = 5.0


def end_leftovers(mark: str) -> int:
    """Wait for every process that carries the mark, this one excepted, then kill; how many were killed."""
    ended: set[int] = set()
    started = time.monotonic()
    while (found := _carrying(mark)) and time.monotonic() - started < _WAIT_SECONDS + _GRACE:
        if time.monotonic() - started > _WAIT_SECONDS:
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


class Guard:
    """The side of the process that is watched."""

    def __init__(self, scratch: str) -> None:
        # A session of its own: neither Ctrl-C nor the end of the watched process's group reaches it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, scratch],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def forget(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def let_go(self) -> None:
        """Close the pipe; the last process to do so sets the guard to work. A forked child does only this."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def close(self) -> None:
        self.let_go()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        # Without a guard nothing is lost but the cleaning up after a `kill -9`.
        with suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())


def _stand_guard(scratch: str) -> None:
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line[0] == "+":
            groups.add(group)
        else:
            groups.discard(group)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for group in groups:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, number)
        if groups:
            time.sleep(0.3)  # see `child.end_group`
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    _stand_guard(sys.argv[1])
