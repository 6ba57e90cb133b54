"""Process groups that are ended as a whole (compilers start compilers), and signals around fork().

Signals are blocked between fork() and recording the pid (`undisturbed`): no process is ever forgotten.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from torchrepro.nouns.errors import HarnessError

_TERM_SECONDS = 0.3
_GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.001


class Process(Protocol):
    """A child of this process, which leads (or is about to lead) a group of its own."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs. Reaps it."""


class ForkedProcess:
    """A child made by `os.fork`: what `subprocess.Popen` is for a program."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        if self._exit_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code


def end_group(leader: Process) -> None:
    """End a process with everything that it has started, and reap it.

    First politely: on SIGTERM g++ removes the kernel or precompiled header that it has half written (in 12 of
    12 tries). After SIGKILL it stays in the cache (12 of 12), and the next candidate that needs it loads it.
    """
    _send(leader, signal.SIGTERM)
    if not _wait(leader, _TERM_SECONDS, whole_group=True):
        _send(leader, signal.SIGKILL)
        # Dead orphans that are not reaped (a container without an init) count as members.
        if not _wait(leader, _GRACE_SECONDS, whole_group=False):
            raise HarnessError(f"the process {leader.pid} cannot be killed")


def _send(leader: Process, number: int) -> None:
    # PermissionError: on macOS for a group of which only a dead process is left.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, number)
    # A child that has just been forked may not lead its group yet. Not reaped: its number is still its own.
    if leader.poll() is None:
        with suppress(ProcessLookupError):
            os.kill(leader.pid, number)


def _wait(leader: Process, seconds: float, *, whole_group: bool) -> bool:
    deadline = time.monotonic() + seconds
    while leader.poll() is None or (whole_group and _has_members(leader.pid)):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork
_HELD_BACK = (signal.SIGINT, signal.SIGTERM)


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent dies, however that happens (Linux)."""
    if sys.platform == "linux" and _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)  # it died before the request


@contextmanager
def undisturbed() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM until the end of the body."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def own_signals() -> None:
    """Reset the signal mask and handlers that a new process has inherited."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and not isinstance(handler, signal.Handlers):
            signal.signal(number, signal.SIG_DFL)
    # A shell ignores it for what it starts in the background; a candidate that dies of it has to show it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
