"""Torch's own tool on a case: its hook catches the graph, its launcher minifies, its script is run again."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.minify.cases import Case
from benchmarks.minify.fresh_run import ATTEMPTS, run_again
from benchmarks.minify.in_tree_script import script_size
from benchmarks.minify.measured import Measured
from benchmarks.processes import Ended, run_limited

CATCH_LIMIT = 300.0
HANG_PATIENCE = 45.0
BEFORE_THE_CALL = 3
"""The level that writes the graph before the call, for programs that die in it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Where its hook stands, and how much it does there."""

    after: str
    level: int

    def __str__(self) -> str:
        return f"after {self.after}, level {self.level}"


def measure(case: Case, scratch: Path, limit: float) -> Measured:
    """Give it the best chance: the level that the case was made for, and the faster mode if it survives."""
    for number, setup in enumerate(_setups(case)):
        ended, launcher = _catch(case, setup, scratch / f"catch-{number}")
        if launcher is not None or case.hangs:
            break
    failed = ended.exit_code != 0 or not ended.in_time or launcher is not None
    if launcher is None:
        return Measured(case.name, "theirs", failed=failed, note=_last_line(ended))
    found = Measured(case.name, "theirs", failed, str(setup), start_ops=script_size(launcher).ops)
    ended, directory = _minify(case, launcher, "--no-isolate", scratch, limit)
    mode = "no-isolate"
    if ended.exit_code < 0 and ended.in_time and setup.after == "aot":  # it died of the failure itself
        mode = "isolate"
        ended, directory = _minify(case, launcher, "--isolate", scratch, limit)
    made = re.search(r"Made (\d+) queries", ended.errors)
    counted = directory / "compiles"
    found = replace(
        found,
        mode=mode,
        queries=int(made[1]) if made else None,
        compiles=counted.stat().st_size if counted.exists() else 0,
        seconds=round(ended.seconds, 1),
        finished=ended.in_time and ended.exit_code == 0,
        stopped=not ended.in_time,
    )
    return _with_script(case, found, directory, ended)


def _with_script(case: Case, found: Measured, directory: Path, ended: Ended) -> Measured:
    script = directory / "repro.py"
    if not script.exists():
        return replace(found, note=_last_line(ended))
    size = script_size(script)
    fresh = run_again(case, script, directory)
    return replace(
        found,
        ops=size.ops,
        inputs=size.inputs,
        elements=size.elements,
        lines=size.lines,
        reproduces=fresh.fails,
        same_failure=fresh.as_the_case,
        script=script.read_text(),
        note=fresh.said,
    )


def _setups(case: Case) -> Iterator[Setup]:
    """What its user would try in turn until something is caught."""
    yield Setup(case.after, case.level)
    if case.level < BEFORE_THE_CALL:
        yield Setup(case.after, BEFORE_THE_CALL)
    if case.after != "aot":
        yield Setup("aot", case.level)


def _catch(case: Case, setup: Setup, scratch: Path) -> tuple[Ended, Path | None]:
    """The launcher that the hook leaves; what fails now and then is run until it does."""
    for attempt in range(ATTEMPTS if case.flaky else 1):
        directory = scratch / str(attempt)
        directory.mkdir(parents=True)
        environ = case.environment(scratch.parent)
        command = [sys.executable, *case.program]
        limit = HANG_PATIENCE if case.hangs else CATCH_LIMIT
        if case.warm_cache:
            run_limited(command, environ, directory, limit)
        asked = {
            "TORCHDYNAMO_REPRO_AFTER": setup.after,
            "TORCHDYNAMO_REPRO_LEVEL": str(setup.level),
            "TORCH_COMPILE_DEBUG_DIR": str(directory),
        }
        ended = run_limited(command, {**environ, **asked}, directory, limit)
        if ended.exit_code != 0:
            break
    return ended, next(directory.rglob("minifier_launcher.py"), None)


def _minify(case: Case, launcher: Path, mode: str, scratch: Path, limit: float) -> tuple[Ended, Path]:
    directory = scratch / mode.strip("-")
    directory.mkdir()
    environ = case.environment(scratch, counted=directory / "compiles")
    environ["TORCH_COMPILE_DEBUG_DIR"] = str(directory)
    command = [sys.executable, str(launcher), "minify", mode]
    return run_limited(command, environ, directory, limit, grace=2.0), directory


def _last_line(ended: Ended) -> str:
    lines = [line for line in ended.errors.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
