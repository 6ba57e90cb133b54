"""What a run has started is found by its mark, whoever its parent is by now."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from torchrepro.engine.processes import limits
from torchrepro.engine.processes.limits import MARK, end_leftovers, owned_directory


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_TERM_SECONDS", 0.3)


@pytest.fixture
def mark() -> str:
    """Its own: other tests may run on this machine."""
    return uuid.uuid4().hex


def test_an_orphan_in_a_session_of_its_own_is_ended(mark: str) -> None:
    # The shell ends at once, and what it has started belongs to init.
    started = subprocess.run(
        ["sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $!"],
        env={**os.environ, MARK: mark},
        capture_output=True,
        text=True,
    )
    pid = int(started.stdout)
    assert end_leftovers(mark) == 1
    # In a container without an init nobody reaps it: it is dead, but still listed.
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_what_ends_politely_is_given_the_time_and_what_does_not_is_killed(
    monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    monkeypatch.setattr(limits, "_TERM_SECONDS", 3.0)  # a machine under load takes its time
    busy = "echo; while :; do sleep 0.05; done"
    programs = [f"trap 'exit 7' TERM; {busy}", f"trap '' TERM; {busy}"]
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                subprocess.Popen(
                    ["sh", "-c", program], env={**os.environ, MARK: mark}, stdout=subprocess.PIPE
                )
            )
            for program in programs
        ]
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()  # its trap is set
        assert end_leftovers(mark) >= 2
        assert [child.wait() for child in children] == [7, -9]


def test_others_are_left_alone(mark: str) -> None:
    child = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: f"another than {mark}"})
    try:
        began = time.monotonic()
        assert end_leftovers(mark) == 0
        assert time.monotonic() - began < 5
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


OWNING = """
import os, subprocess, sys
from torchrepro.engine.processes.limits import MARK, owned_directory
with owned_directory("torchrepro-owned-") as directory:
    if sys.argv[1:]:
        child = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: directory.name}, stdout=2)
        print(child.pid, flush=True)
        os.kill(os.getpid(), 9)
    print(directory, flush=True)
    input()
"""


def test_the_directory_of_a_killed_process_goes_with_what_it_started_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", OWNING, "-"], env=environ, stdout=subprocess.PIPE)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = [sys.executable, "-c", OWNING]
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as lives:
        assert lives.stdout is not None
        other = Path(lives.stdout.readline().decode().strip())
        with owned_directory("torchrepro-owned-") as own:
            assert sorted(tmp_path.iterdir()) == sorted([own, other])
        lives.communicate(b"\n")
    stat = Path(f"/proc/{int(killed.stdout)}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
    assert not left.exists()
    assert not any(tmp_path.iterdir())


def test_a_fork_leaves_the_directory_that_another_thread_owns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    held = threading.local()

    def own() -> None:
        held.stack = ExitStack()
        held.stack.enter_context(owned_directory("torchrepro-owned-"))

    with ThreadPoolExecutor(1) as other:
        other.submit(own).result()
        child = os.fork()  # it frees what is local to the other thread
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        assert [path.is_dir() for path in tmp_path.iterdir()] == [True]
        other.submit(lambda: held.stack.close()).result()
    assert not any(tmp_path.iterdir())
