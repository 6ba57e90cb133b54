"""Signals, streams and the parent's death: what a process sets up for itself and its children."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

SignalHandler = Callable[[int, FrameType | None], None]
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork


def die_with(parent: int = 0, number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when its parent dies, however that happens (Linux).

    `parent` is the parent's pid; 0: not known, because another process starts this one for it.
    """
    if sys.platform == "linux" and _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent and os.getppid() != parent:
        os._exit(1)  # the parent died before the call


@contextmanager
def handling(handlers: Mapping[int, SignalHandler]) -> Iterator[None]:
    """Handle signals in the body. Signals that a shell ignores for background processes stay ignored.

    Python handles signals in the main thread only; a caller in another thread keeps its own handlers.
    """
    former: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                former[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM: raise SystemExit, so that child processes are killed; ignore a second SIGTERM."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM until the end of the body."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_afresh() -> None:
    """Reset the signal mask and handlers that a new process has inherited; let it leave no core dump."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and not isinstance(handler, signal.Handlers):
            signal.signal(number, signal.SIG_DFL)
    # A shell ignores SIGINT for background processes; a candidate that raises it must die of it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # A core dump of a process with gigabytes would take seconds.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def redirect(output: int) -> None:
    """Redirect stdin to /dev/null and output to the file, with new streams: a test runner may own the old."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nothing)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (for the life of the process)
    # Line-buffered, so that the last lines before a crash are written.
    stdout, stderr = (
        os.fdopen(target, "w", 1, errors="backslashreplace", closefd=False) for target in (1, 2)
    )
    sys.stdout, sys.stderr = stdout, stderr
    if faulthandler.is_enabled():
        faulthandler.enable()  # to the new stream
