"""`enable`, `disable` and `watch`: the watch of this process."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torchrepro.catch.caught import caught_in, closing_lines
from torchrepro.catch.session import Session
from torchrepro.catch.settings import LAUNCHED, WatchSettings
from torchrepro.catch.torch_hooks import install

_sessions: list[Session] = []
_at_exit: list[Session] = []


def enable(settings: WatchSettings | None = None, **options: Any) -> Session:
    """Watch every `torch.compile` of this process from now on; options as in `WatchSettings`.

    What has been compiled already stays as it is: call `torch.compiler.reset()` first to have it watched too.
    """
    session = open_session((settings or WatchSettings.from_environ()).changed(**options))
    install(current_session)
    _sessions.append(session)
    return session


def disable(session: Session | None = None) -> None:
    """Stop watching, also what has been compiled meanwhile; without a session the latest `enable` ends."""
    if session is None and _sessions:
        session = _sessions[-1]
    if session in _sessions:
        _sessions.remove(session)
        session.end()


@contextmanager
def watch(settings: WatchSettings | None = None, **options: Any) -> Iterator[Session]:
    """Watch what the body compiles and calls. The session that it gives has the bundles in `kept`."""
    session = enable(settings, **options)
    try:
        yield session
    finally:
        disable(session)


def open_session(settings: WatchSettings) -> Session:
    """Open a session that ends with the process at the latest."""
    session = Session(settings)
    if not _at_exit:
        atexit.register(_finish)
    _at_exit.append(session)
    return session


def current_session() -> Session | None:
    """Return the session of the innermost `watch` or latest `enable`."""
    return _sessions[-1] if _sessions else None


def _finish() -> None:
    """At the end of the process: clean up, and say last what was caught."""
    for session in _at_exit:
        session.end()
        if session.kept and session.pid == os.getpid() and LAUNCHED not in os.environ:
            lines = closing_lines(caught_in(session.directory, session.run_id))
            print("\n".join(lines), file=sys.stderr)
