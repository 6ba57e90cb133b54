"""Jobs of search processes for tests: what a search process may do, and how it may end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from torchrepro.engine.processes.child import Reporter
from torchrepro.engine.search.process import SearchRequest


def answers(request: SearchRequest, reporter: Reporter) -> Any:
    reporter.phase("search")
    reporter.send(progress={"queries": 3})
    print("what it prints is no answer")
    inherited = os.get_inheritable(request.lock)
    return {"settings": request.settings, "mark": os.environ["TORCHREPRO_RUN_MARK"], "inherited": inherited}


def stops_when_asked(request: SearchRequest, reporter: Reporter) -> Any:
    asked: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    reporter.phase("search")
    deadline = time.monotonic() + 60
    while not asked and time.monotonic() < deadline:
        time.sleep(0.01)
    return {"asked": len(asked)}


def never_stops(request: SearchRequest, reporter: Reporter) -> Any:
    """Ignores Ctrl-C, and has started a process in a session of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sleeping = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(request.directory, "pids").write_text(f"{os.getpid()} {sleeping.pid}")
    reporter.phase("search")
    time.sleep(600)


def remembers_and_is_killed(request: SearchRequest, reporter: Reporter) -> Any:
    """Stores a verdict, and dies of SIGKILL unless a former process has stored it."""
    from torchrepro.engine.store import SqliteStore
    from torchrepro.nouns.verdict import Kind, Verdict

    directory = Path(request.directory)
    paths = {"best_to": directory / "best", "also_seen_to": directory / "also_seen"}
    with SqliteStore(directory / "verdicts.sqlite", **paths) as store:
        known = store.verdict("key")
        if known is not None:
            return {"known": known.kind.value}
        store.remember("key", Verdict(Kind.MISMATCH))
        os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("it has survived SIGKILL")
