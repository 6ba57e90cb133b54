"""Signals around the making and ending of processes: none may come between a deed and the note of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_HELD_BACK = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the end of the body: nobody ends a process that nobody knows of."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def own_signals() -> None:
    """For a new process: neither what its parent held back nor what its parent does on a signal is for it."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and not isinstance(handler, signal.Handlers):
            signal.signal(number, signal.SIG_DFL)
    # A shell ignores it for what it starts in the background; a candidate that dies of it has to show it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
