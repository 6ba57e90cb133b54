"""Run a final script once more in a fresh process, and ask whether it shows the failure of the case."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.minify.cases import DIFFERENT_NUMBERS, Case
from benchmarks.processes import Ended, run_limited

TIME_LIMIT = 120.0
HANG_LIMIT = 45.0
"""Seconds after which a script that is known to hang has shown it."""
ATTEMPTS = 8
"""Runs of what fails only now and then: one failure is enough."""

# What says that a script is broken, and not that it shows a broken compiler.
_BROKEN = ("SyntaxError", "ModuleNotFoundError", "NameError", "FileNotFoundError", "IndentationError")


@dataclass(frozen=True, slots=True)
class FreshRun:
    fails: bool
    as_the_case: bool
    said: str
    """Its last line, for the reader."""


def run_again(case: Case, script: Path, scratch: Path) -> FreshRun:
    for attempt in range(ATTEMPTS if case.flaky else 1):
        cache = scratch / f"fresh-{attempt}"
        cache.mkdir(parents=True)
        limit = HANG_LIMIT if case.hangs else TIME_LIMIT
        command = [sys.executable, str(script)]
        ended = run_limited(command, case.environment(cache), script.parent, limit, grace=2.0)
        if not ended.in_time or ended.exit_code != 0:
            break
    said = f"{ended.output}\n{ended.errors}".strip().splitlines() or [""]
    return FreshRun(_fails(ended), _shows(case, ended), said[-1][:200])


def _fails(ended: Ended) -> bool:
    if not ended.in_time:
        return True
    return ended.exit_code != 0 and not any(word in ended.errors for word in _BROKEN)


def _shows(case: Case, ended: Ended) -> bool:
    """Whether a run shows the failure that the case is known by."""
    if case.hangs:
        return not ended.in_time
    if not ended.in_time or not _fails(ended):
        return False
    if case.match.startswith("SIG"):
        name = ""
        with suppress(ValueError):
            name = signal.Signals(-ended.exit_code).name
        return name == case.match
    said = ended.output + ended.errors
    if case.match == DIFFERENT_NUMBERS:
        # A script of ours asserts with the public function, which does not know torch's own class of error.
        return DIFFERENT_NUMBERS in said or "AssertionError" in said
    return case.match in said
