"""`torchrepro bisect`, as a user starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import answer, torchrepro
from fake_uv import install_fake_uv

pytestmark = pytest.mark.slow
SLOW = """\
import os, time
with open("runs", "a") as runs:
    runs.write(os.environ["N"])
time.sleep(60 if os.environ["N"] == "2" and not os.path.exists("go") else 0)
assert os.environ["N"] == "1"
"""


def test_versions_of_torch_are_installed_and_bisected(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("import os\nif os.environ['FAKE_TORCH'] >= '2.12.1': raise KeyError('buf7')\n")
    environ = {"TORCHREPRO_CACHE_DIR": str(tmp_path / "cache"), **install_fake_uv(tmp_path / "bin")}
    found = answer(torchrepro("bisect", script, "--torch", "2.11..2.14", "--jobs", "1", "--json", **environ))
    rows = {row["setting"]: row["state"] for row in found["rows"]}
    assert list(rows) == ["2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0"]
    assert (found["last_good"]["setting"], found["first_bad"]["setting"]) == ("2.12.0", "2.12.1")
    assert rows["2.13.0"] == "not run"
    assert found["reference"] == "run_error | KeyError | 'buf<n>'"
    assert json.loads((tmp_path / "script.py.bisected" / "result.json").read_text()) == found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_run_continues_where_it_stopped_and_leaves_no_process(
    tmp_path: Path, number: signal.Signals
):
    script, runs, cache = tmp_path / "script.py", tmp_path / "runs", str(tmp_path / "cache")
    script.write_text(SLOW)
    words = ["bisect", str(script), "--env", "N=1,2,3", "--jobs", "1"]
    started = subprocess.Popen(
        [sys.executable, "-m", "torchrepro", *words],
        cwd=tmp_path,
        env={**os.environ, "TORCHREPRO_CACHE_DIR": cache},
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (runs.exists() and "2" in runs.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    started.send_signal(number)
    shown, _ = started.communicate(timeout=60)
    if number is signal.SIGINT:
        assert started.returncode == 130
        assert "the same command continues" in shown
    deadline = time.monotonic() + 10
    while str(script) in _commands() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert str(script) not in _commands()

    before = runs.read_text()
    assert sorted(before) == ["1", "2", "3"], "2 lies between the ends: it was stopped"
    (tmp_path / "go").touch()
    found = answer(torchrepro(*words, "--json", cwd=tmp_path, TORCHREPRO_CACHE_DIR=cache))
    assert [row["state"] for row in found["rows"]] == ["passes", "same failure", "same failure"]
    assert sorted(runs.read_text()[len(before) :]) == ["1", "2", "2"], "the second run of 1, both of 2"


def _commands() -> str:
    """The command lines of all processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # it has just ended
    return "\n".join(found)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-bundle", "--torch", "2.11.0,2.12.0"], "no-such-bundle"),
        (["no_such_script.py", "--torch", "2.11.0,2.12.0"], "does not exist"),
        (["script.py"], "nothing varies"),
        (["script.py", "--torch", "a..b"], "no version of torch"),
        (["script.py", "--env", "N"], "no variable"),
    ],
)
def test_wrong_use_is_one_line_with_the_next_step(tmp_path: Path, words: list[str], said: str):
    (tmp_path / "script.py").write_text("")
    finished = torchrepro("bisect", *words, "--json", cwd=tmp_path)
    assert finished.returncode == 125
    assert said in answer(finished)["error"]
    assert len(finished.stderr.strip().splitlines()) == 1


def test_an_interpreter_without_torch_cannot_run(tmp_path: Path):
    (tmp_path / "script.py").write_text("")
    for name in ("one", "two"):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / name], check=True)
    pythons = [word for name in ("one", "two") for word in ("--python", tmp_path / name / "bin" / "python")]
    finished = torchrepro("bisect", "script.py", *pythons, cwd=tmp_path)
    assert finished.returncode == 125
    assert "nothing could run" in finished.stdout
    assert "has no package torch" in finished.stdout
