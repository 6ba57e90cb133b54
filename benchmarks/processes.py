"""Run a command as a person would who has only so much patience: with a limit, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GRACE = 20.0
"""Seconds from an interrupt to the end of patience."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended; `exit_code` as `subprocess` has it."""

    exit_code: int
    seconds: float
    output: str
    errors: str
    in_time: bool
    """Whether it ended by itself, before anybody interrupted it."""


def run_limited(
    command: Sequence[str],
    environ: Mapping[str, str],
    directory: Path,
    limit: float,
    *,
    grace: float = GRACE,
) -> Ended:
    """Run a command in a session of its own; after the limit interrupt it, then kill it and its children."""
    started = time.monotonic()
    in_time = True
    with (
        tempfile.TemporaryFile("w+", errors="replace") as output,
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(
            command,
            env=environ,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        ) as process,
    ):
        try:
            for number, seconds in ((signal.SIGINT, limit), (signal.SIGKILL, grace)):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=seconds)
                    break
                in_time = False
                os.killpg(process.pid, number)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        exit_code = process.wait()
        seconds_taken = time.monotonic() - started
        output.seek(0)
        errors.seek(0)
        return Ended(exit_code, seconds_taken, output.read(), errors.read(), in_time)


def json_of(ended: Ended) -> dict[str, Any]:
    """The object that `--json` has printed; empty where nothing was."""
    found: dict[str, Any] = {}
    with suppress(json.JSONDecodeError):
        found = json.loads(ended.output)
    return found


def last_line_of(ended: Ended) -> str:
    """The last thing that it said."""
    lines = [line for line in (ended.errors + ended.output).splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
