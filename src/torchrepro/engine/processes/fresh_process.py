"""One job in one fresh process: its result, or how and in which phase it died.

The child reports over a pipe of its own, so that whatever the user's model prints cannot be mistaken for an
answer. It leads a process group that is killed as a whole: compilers start compilers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from torchrepro.engine.processes.child import Child, listen, reports_and_output
from torchrepro.engine.processes.outcome import Outcome


def run_isolated(
    job: str,
    payload: Mapping[str, Any],
    *,
    time_limit: float,
    environ: Mapping[str, str] | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Outcome:
    """Run a named job in a fresh interpreter (`worker.py`) and wait for it, at most `time_limit` seconds."""
    started = time.monotonic()
    deadline = started + time_limit
    with tempfile.TemporaryFile() as request:
        request.write(json.dumps({"job": job, "payload": payload}).encode())
        request.seek(0)
        child = start_interpreter(
            "torchrepro.engine.processes.worker", environ, stdin=request, on_phase=on_phase
        )
        try:
            while (outcome := child.outcome(started, deadline)) is None:
                listen([child], deadline)
        finally:
            child.end()
        return outcome


def start_interpreter(
    module: str,
    environ: Mapping[str, str] | None = None,
    *,
    arguments: tuple[str, ...] = (),
    stdin: IO[bytes] | int = subprocess.DEVNULL,
    pass_fds: tuple[int, ...] = (),
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Child:
    """`python -m module REPORT_FD ARGUMENTS` as the leader of a group; what it prints goes to a file."""
    with reports_and_output() as (reading_end, writing_end, output):
        # -P: a file called random.py in the user's directory must not replace the standard library's.
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(writing_end), *arguments],
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(writing_end, *pass_fds),
            env={**os.environ, **(environ or {})},
            start_new_session=True,
        )
        return Child(process, reading_end, output, on_phase)
