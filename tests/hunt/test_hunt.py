"""A hunt from the command line: it finds, keeps, continues and replays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_HUNT = [sys.executable, "-m", "torchrepro", "hunt"]


def _json(*arguments: str) -> dict[str, object]:
    done = subprocess.run([*_HUNT, *arguments, "--json"], capture_output=True, text=True, timeout=280)
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.thorough
def test_a_killed_hunt_goes_on_with_the_seeds_that_were_not_judged(tmp_path: Path) -> None:
    out, arguments = (
        tmp_path / "hunt",
        ["--generators", "operators", "--seed", "b0", "--batch", "4", "-j", "1"],
    )
    process = subprocess.Popen([*_HUNT, "--out", str(out), *arguments], stdout=subprocess.DEVNULL)
    log = out / "programs.jsonl"
    deadline = time.monotonic() + 200
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = log.read_text()
    assert before
    found = _json("--out", str(out), *arguments, "--programs", "4")
    after = log.read_text()
    assert after.startswith(before)
    seeds = [json.loads(line)["seed"] for line in after.splitlines()]
    assert len(seeds) == len(set(seeds))
    assert found["judged_now"] > 0  # type: ignore[operator]
    assert (out / "corpus" / "index.sqlite").exists()


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A Python that is this one under another name, and adds a line to the file `calls` each time."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


def _calls(python: Path) -> int:
    """Count the processes that served jobs."""
    calls = python.with_name("calls").read_text().splitlines()
    return sum("fresh_process" in call for call in calls)


@pytest.mark.slow
def test_a_seed_is_replayed_as_a_script_with_a_verdict_by_the_python_asked_for(other: Path) -> None:
    found = _json("--replay", "operators-b0000001", "--python", str(other))
    assert "import torch" in str(found["script"])
    assert found["verdict"]["kind"] == "pass"  # type: ignore[index]
    assert _calls(other) == 2


@pytest.mark.thorough
def test_a_hunt_runs_in_the_python_asked_for(tmp_path: Path, other: Path) -> None:
    out = tmp_path / "hunt"
    arguments = ("--generators", "operators", "--seed", "b0", "-j", "1", "--programs", "4")
    found = _json("--out", str(out), *arguments, "--python", str(other))
    assert found["judged_now"] > 0  # type: ignore[operator]
    assert _calls(other) == 1
    about = json.loads((out / "hunt.json").read_text())
    assert about["torch"].startswith("2.")


def test_wrong_names_and_seeds_are_errors_with_a_next_step(tmp_path: Path) -> None:
    for arguments, words in (
        (["--out", str(tmp_path / "a"), "--generators", "opperators"], "there is no generator 'opperators'"),
        ([], "a hunt needs a directory"),
        (["--out", str(tmp_path / "b"), "--seed", "xyz"], "'xyz' is no number"),
        (["--out", str(tmp_path / "c"), "--torch", "new"], "'new' is no version of torch"),
        (["--out", str(tmp_path / "d"), "--torch", "2.15.0", "--python", "python"], "exclude each other"),
        (["--replay", "operators-b0", "--python", str(tmp_path / "nothing")], "is no program that can"),
    ):
        done = subprocess.run([*_HUNT, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 125
        assert words in done.stderr
        assert "Traceback" not in done.stderr


def test_the_generators_are_listed() -> None:
    done = subprocess.run([*_HUNT, "--list-generators"], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("operators ")
