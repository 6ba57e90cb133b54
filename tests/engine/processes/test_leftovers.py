"""What a run has started is found by its mark, whoever its parent is by now."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from torchrepro.engine.processes import limits
from torchrepro.engine.processes.limits import MARK, end_leftovers


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_TERM_SECONDS", 0.3)


def test_an_orphan_in_a_session_of_its_own_is_ended() -> None:
    # The shell ends at once, and what it has started belongs to init.
    started = subprocess.run(
        ["sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $!"],
        env={**os.environ, MARK: "orphan"},
        capture_output=True,
        text=True,
    )
    pid = int(started.stdout)
    assert end_leftovers("orphan") == 1
    # In a container without an init nobody reaps it: it is dead, but still listed.
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_ends_politely_is_given_the_time_and_what_does_not_is_killed() -> None:
    programs = ["trap 'exit 7' TERM; echo; sleep 60 & wait", "trap '' TERM; echo; sleep 60"]
    children = [
        subprocess.Popen(["sh", "-c", program], env={**os.environ, MARK: "polite"}, stdout=subprocess.PIPE)
        for program in programs
    ]
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()  # its trap is set
    assert end_leftovers("polite") >= 2
    assert [child.wait() for child in children] == [7, -9]


def test_others_are_left_alone() -> None:
    child = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: "another run"})
    try:
        began = time.monotonic()
        assert end_leftovers("this run") == 0
        assert time.monotonic() - began < 5
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
