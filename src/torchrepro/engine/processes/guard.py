"""Ends what a killed process has left behind: the groups it had under way, and its scratch directory.

`kill -9` gives nobody the time to clean up, and the compilers that a child has started do not die with it. So
a process of its own watches: it is told of every group over a pipe, and when the pipe ends, so does all that
was not called off. It is run as a plain file, with the standard library alone: it starts in 15 ms.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress


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
            time.sleep(0.3)  # see `groups.end_group`
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    _stand_guard(sys.argv[1])
