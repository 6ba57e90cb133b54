"""`torchrepro run` of a distributed training: one rank breaks, and all of them end with its name in hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import answer, torchrepro

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("ddp_program.py")
DEADLINE = 240.0


def train(*words: object, out: Path) -> tuple[str, str, list[dict[str, Any]]]:
    """Standard output, standard error and the bundles of a training under the watch; nobody outlives it."""
    command = [sys.executable, "-m", "torchrepro", "run", "--level", "3", "--out", str(out)]
    with subprocess.Popen(
        [*command, str(PROGRAM), *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            output, errors = running.communicate(timeout=DEADLINE)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
    return output, errors, json.loads((out / "summary.json").read_text())["bundles"]


def test_a_rank_whose_compiler_fails_is_named_on_the_others_and_its_bundle_reproduces(tmp_path: Path) -> None:
    output, errors, bundles = train("spawn", 2, 1, "compile_error", out=tmp_path)
    assert "exit codes [1, 1]" in output, errors
    (bundle,) = bundles
    assert (bundle["verdict"], "rank1" in bundle["path"]) == ("compile_error", True)
    assert "RankFailed: rank 1 failed: compile_error" in errors
    assert f"bundle of rank 1: {bundle['path']}" in errors
    checked = torchrepro("check", bundle["path"], "--json")
    assert checked.returncode == 1, checked.stderr
    assert answer(checked)["reproduces"]


@pytest.mark.thorough  # test_ranks_processes.py kills ranks of four in CI
def test_a_rank_that_is_killed_is_named_on_the_three_others(tmp_path: Path) -> None:
    output, errors, bundles = train("fork", 4, 2, "killed", out=tmp_path)
    assert f"exit codes [1, 1, {-signal.SIGKILL}, 1]" in output, errors
    assert errors.count("RankFailed: rank 2 died") == 3
    assert bundles == []
