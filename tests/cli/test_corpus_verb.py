from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from torchrepro import Compiler, Kind, Repro, Signature, save_bundle
from torchrepro.engine.processes.limits import owned_directory

COMPILER = """
import os, time
def chosen(graph, inputs):
    mode = os.environ.get("MODE", "wrong")
    if mode == "slow":
        open("compiling", "w").close()
        time.sleep(600)
    if mode == "raises":
        raise KeyError("buf12")
    return (lambda *args: [out + 1 for out in graph(*args)]) if mode == "wrong" else graph
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a compiler, whose failure depends on the interpreter, and a corpus of one bundle."""
    place = tmp_path_factory.mktemp("corpus")
    (place / "compiler.py").write_text(COMPILER)
    graph = torch.fx.symbolic_trace(lambda x: torch.cos(x) + 1)
    compiler = Compiler("compiler:chosen")
    repro = Repro(graph, (torch.randn(3),), compiler=compiler, expected=Signature(Kind.MISMATCH))
    save_bundle(repro, place / "wrong")
    for mode in ("right", "wrong", "raises", "slow"):
        python = place / mode / "python" if mode != "wrong" else place / "python-wrong"
        python.parent.mkdir(exist_ok=True)
        python.write_text(f'#!/bin/sh\nMODE={mode} exec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
    assert corpus(place, "add", "c", "wrong").returncode == 0
    return place


def corpus(place: Path, *words: object, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchrepro", "corpus", *map(str, words)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB")}
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=240, env=environ)


@pytest.mark.slow
def test_ab_finds_what_the_new_version_broke_and_exits_with_1(place: Path):
    told = corpus(
        place, "ab", "c", "--python", "right/python", "--python", "python-wrong", "--json", "--junit", "j.xml"
    )
    assert told.returncode == 1, told.stderr
    answer = json.loads(told.stdout)
    assert answer["states"] == {"regressed": 1}
    assert answer["replays"] == 3  # two silent runs of the baseline, one failure of the candidate
    assert '<failure type="mismatch' in (place / "j.xml").read_text()


@pytest.mark.thorough
def test_ab_tells_fixed_from_another_failure(place: Path):
    fixed = corpus(place, "ab", "c", "--python", "python-wrong", "--python", "right/python", "--json")
    assert (json.loads(fixed.stdout)["states"], fixed.returncode) == ({"fixed": 1}, 0)
    other = corpus(
        place,
        "ab",
        "c",
        "--python",
        "python-wrong",
        "--python",
        "raises/python",
        "--json",
        "--fail-on",
        "fails-otherwise",
    )
    assert (json.loads(other.stdout)["states"], other.returncode) == ({"fails-otherwise": 1}, 1)


@pytest.mark.thorough
def test_run_writes_a_baseline_that_accepts_what_it_found(place: Path):
    first = corpus(place, "run", "c", "--baseline", "b.txt", "--update-all", "--fail-on", "still-fails")
    assert first.returncode == 1, first.stderr
    assert "still fails" in first.stdout
    assert "fresh process with fresh compile caches" in first.stdout
    assert "still-fails" in (place / "b.txt").read_text()
    again = corpus(place, "run", "c", "--baseline", "b.txt", "--fail-on", "still-fails", "--github")
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.thorough)])
def test_a_run_that_is_ended_leaves_no_process_and_no_cache(
    place: Path, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (place / "compiling").unlink(missing_ok=True)
    command = [sys.executable, "-m", "torchrepro", "corpus", "run", "c", "--python", "slow/python"]
    started = subprocess.Popen(
        command,
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "MARK": "x7", "TMPDIR": str(tmp_path)},
    )
    deadline = time.monotonic() + 120
    while not (place / "compiling").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(_marked("MODE=slow", "MARK=x7")) == 2  # the process of the replay, and the one that compiles
    started.send_signal(number)
    _, said = started.communicate(timeout=60)
    assert started.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), said
    deadline = time.monotonic() + 30
    while _marked("MODE=slow", "MARK=x7") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _marked("MODE=slow", "MARK=x7")
    if number == signal.SIGKILL:  # the next replay removes what this one could not
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with owned_directory("torchrepro-replay-"):
            pass
    assert not list(tmp_path.glob("torchrepro-replay-*"))


def _marked(*marks: str) -> list[int]:
    """Return the processes with these settings in their environment."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            environ = (each / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if all(mark.encode() in environ for mark in marks):
            found.append(int(each.name))
    return found


def test_wrong_use_is_a_line_with_the_next_step(place: Path):
    for words, said in (
        (("run", "nowhere"), "is no corpus"),
        (("run", "c", "--shard", "3/2"), "is no shard"),
        (("run", "c", "--fail-on", "broken"), "has no state broken"),
        (("run", "c", "--update"), "--baseline FILE"),
        (("run", "c", "--python", "nowhere/python"), "is no program"),
        (("run", "c", "--junit", "/proc/x/j.xml"), "choose another file"),
        (("run", "c", "--html", "right"), "cannot write right: Is a directory"),
        (("run", "c", "--baseline", "/proc/b", "--update"), "choose another file"),
        (("run", "c", "--baseline", "right"), "cannot read the baseline right: Is a directory"),
        (("ab", "c", "--python", "python-wrong"), "--python OLD --python NEW"),
        (("run", "c", "--only", "zz"), "no bundle or bucket"),
        (("add", "compiler.py", "wrong"), "cannot be a corpus"),
        (("add", "/proc/x", "wrong"), "cannot be a corpus"),
        (("show", "c", "zz"), "no bundle"),
        (("rm", "c", "zz"), "no bundle"),
        (("merge", "c", "nowhere"), "is no corpus"),
        (("add", "c", "nowhere"), "does not exist"),
    ):
        told = corpus(place, *words)
        assert told.returncode == 125, words
        assert said in told.stderr
        assert "Traceback" not in told.stderr
        assert len(told.stderr.splitlines()) == 1, told.stderr


def test_list_and_show_tell_the_bucket(place: Path):
    listed = corpus(place, "list", "c")
    assert "1 bundle in 1 bucket" in listed.stdout
    entry = json.loads(corpus(place, "list", "c", "--json").stdout)["bundles"][0]
    shown = corpus(place, "show", "c", entry["id"][:6])
    assert entry["bucket"] in shown.stdout
    assert "mismatch" in shown.stdout


def test_a_wrong_path_leaves_no_empty_corpus(tmp_path: Path):
    done = corpus(tmp_path, "add", "c", "nowhere")
    assert done.returncode == 125
    assert "nowhere does not exist; check the path" in done.stderr
    assert not (tmp_path / "c").exists()
