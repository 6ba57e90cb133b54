"""`torchrepro minify` as a user meets it. Most tests ask a command that reads graph.py: no compiler runs."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from commands import CASES, answer, torchrepro

from torchrepro import Repro, save_bundle
from torchrepro.bundle.provenance import is_own
from torchrepro.minify.run_directory import RunDirectory

CONTRACT = {
    "bundle",
    "script",
    "start_ops",
    "ops",
    "inputs",
    "elements",
    "queries",
    "seconds",
    "signature",
    "reproduces",
}


def chain(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor]:
    """Thirty ops, of which the oracle wants two that are far apart."""
    for step in range(14):
        x = torch.cos(x) + w
        if step == 3:
            x = torch.relu(x)
        if step == 11:
            x = torch.tanh(x)
    return (x,)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repro = Repro(torch.fx.symbolic_trace(chain), (torch.randn(3, 4), torch.randn(4)))
    return save_bundle(repro, tmp_path_factory.mktemp("bundle") / "failing")


class Oracle:
    """A shell command that wants `torch.relu` and `torch.tanh` in a graph, and notes what it is asked."""

    def __init__(self, directory: Path, seconds: float = 0.0) -> None:
        self.log = directory / "asked"
        self.command = (
            f"cat {{}}/graph.py {{}}/tensors.safetensors | md5sum >> {self.log}; sleep {seconds}; "
            "grep -q 'torch.relu(' {}/graph.py && grep -q 'torch.tanh(' {}/graph.py && exit 3; exit 0"
        )

    @property
    def asked(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def started(*words: object, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "torchrepro", "minify", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        # A job in the background of a shell ignores the signal, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def left_behind(run: Path) -> list[str]:
    """Processes that a run in this directory has started, the commands of its oracle included."""
    mark = RunDirectory(run).mark.encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is another user's
            if mark in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
    return found


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_and_a_finished_run_is_answered_at_once(
    bundle: Path, tmp_path: Path
) -> None:
    oracle, run = Oracle(tmp_path, seconds=0.1), tmp_path / "run"
    words = (bundle, "--oracle", oracle.command, "--out", run, "--jobs", 1, "--json")
    killed = started(*words, cwd=tmp_path)
    wait_for(lambda: len(oracle.asked) >= 5)
    killed.kill()
    killed.communicate()

    before = len(oracle.asked)
    killed = started(*words, cwd=tmp_path)
    wait_for(lambda: len(oracle.asked) >= before + 3)
    search = int(subprocess.check_output(["pgrep", "-P", str(killed.pid)], text=True).split()[0])
    os.kill(search, signal.SIGKILL)
    out, err = killed.communicate(timeout=60)
    assert killed.returncode == 125
    assert "was killed" in err
    assert "the same command continues from there" in json.loads(out)["next_step"]
    assert left_behind(run) == []

    finished = torchrepro("minify", *words)
    found = answer(finished)
    assert finished.returncode == 0, finished
    assert set(found) >= CONTRACT
    assert found["start_ops"] == 30
    assert found["ops"] <= 2
    assert found["reproduces"] is True
    assert "exit 3" in found["signature"]
    assert (Path(found["bundle"]) / "manifest.json").exists()
    assert_asked_once(oracle, under_way=2)

    asked, began = oracle.asked, time.monotonic()
    assert answer(torchrepro("minify", *words)) == found
    text = torchrepro("minify", *words[:-1]).stdout
    assert time.monotonic() - began < 10, "no torch is imported"
    assert oracle.asked == asked
    assert text.startswith("minimal")
    assert Path(found["script"]).read_text().strip() in text
    assert text.splitlines()[-1] == found["script"]
    kept = {"best", "history.jsonl", "minimal", "lock", "original.json", "result.json", "run.json"}
    kept.add("verdicts.sqlite")
    assert {path.name for path in run.iterdir()} == kept, "nothing temporary is left"


def assert_asked_once(oracle: Oracle, under_way: int) -> None:
    """Nothing is asked twice but what was under way at a kill, the original (3 times) and the result."""
    repeated = sum(count - 1 for count in Counter(oracle.asked).values())
    assert repeated <= under_way + 2 + 1


@pytest.mark.thorough
def test_killed_again_and_again_at_random_moments(bundle: Path, tmp_path: Path) -> None:
    oracle, run = Oracle(tmp_path, seconds=0.1), tmp_path / "run"
    words = (bundle, "--oracle", oracle.command, "--out", run, "--json")
    kills = 0
    while True:
        child = started(*words, cwd=tmp_path)
        try:
            out, _ = child.communicate(timeout=random.uniform(3, 9))
            break
        except subprocess.TimeoutExpired:
            children = subprocess.run(["pgrep", "-P", str(child.pid)], capture_output=True, text=True)
            os.kill(int(random.choice([str(child.pid), *children.stdout.split()])), signal.SIGKILL)
            child.communicate()
            kills += 1
    assert json.loads(out)["minimal"], out
    assert_asked_once(oracle, under_way=3 * kills)
    assert left_behind(run) == []


@pytest.mark.slow
def test_ctrl_c_once_keeps_the_best_and_twice_leaves_at_once(bundle: Path, tmp_path: Path) -> None:
    oracle, run = Oracle(tmp_path, seconds=0.3), tmp_path / "run"
    words = (bundle, "--oracle", oracle.command, "--out", run, "--jobs", 1, "--json")
    child = started(*words, cwd=tmp_path)
    wait_for(lambda: len(oracle.asked) >= 6)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    found = json.loads(out)
    assert child.returncode == 1
    assert found["stopped"] == "stopped by the user"
    assert found["reproduces"] is True
    assert "Ctrl-C again" in err

    child, asked = started(*words, cwd=tmp_path), len(oracle.asked)
    wait_for(lambda: len(oracle.asked) > asked)
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGINT)
    wait_for(lambda: child.poll() is not None, seconds=30)
    assert "Traceback" not in child.communicate()[1]
    assert left_behind(run) == []


@pytest.mark.thorough
def test_a_time_limit_ends_it_with_the_best_so_far(bundle: Path, tmp_path: Path) -> None:
    oracle = Oracle(tmp_path, seconds=1.0)
    finished = torchrepro(
        "minify", bundle, "--oracle", oracle.command, "--out", tmp_path / "run", "--json", "--time-limit", 2
    )
    found = answer(finished)
    assert finished.returncode == 1
    assert found["stopped"] == "the time is up"
    assert found["reproduces"] is True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{place}/nowhere"], ["does not exist"]),
        (["{place}/nowhere.py"], ["does not exist"]),
        (["{bundle}", "--oracle", "true", "--passes", "windoes"], ["no pass is called 'windoes'"]),
        (["{bundle}", "--oracle", "exit 0;"], ["it does not fail here"]),
        (["{bundle}", "--out", "{bundle}/graph.py"], ["is a file", "--out"]),
        ([], ["nothing to minify"]),
    ],
)
def test_what_cannot_be_tested_is_one_line(
    bundle: Path, tmp_path: Path, words: list[str], said: list[str]
) -> None:
    out = [] if "--out" in words else ["--out", str(tmp_path / "run")]
    finished = torchrepro("minify", *(word.format(place=tmp_path, bundle=bundle) for word in words), *out)
    assert finished.returncode == 125, finished
    assert finished.stdout == ""
    assert len(finished.stderr.strip().splitlines()) == 1, finished.stderr
    for text in said:
        assert text in finished.stderr


@pytest.mark.slow
@pytest.mark.thorough  # CI minifies the same bug in tests/goldens
def test_a_real_bug_of_torch_ends_in_a_script_that_fails(tmp_path: Path) -> None:
    only_here()
    # pytorch #191499: the smallest byte of a vector is polluted by lanes that are not in use.
    graph = torch.fx.symbolic_trace(lambda x: (x.amin() + 1, x.amax()))
    inputs = (torch.randint(20, 120, (64,), dtype=torch.uint8),)
    bundle = save_bundle(Repro(graph, inputs), tmp_path / "failing")
    finished = torchrepro("minify", bundle, "--json", "--no-explain")
    found = answer(finished)
    assert finished.returncode == 0, finished
    assert (found["ops"], found["inputs"], found["signature"]) == (1, 1, "mismatch")
    assert found["directory"] == f"{bundle}.minified"
    ended = subprocess.run([sys.executable, found["script"]], capture_output=True, text=True)
    assert "AssertionError" in ended.stderr


PROGRAM = """
import sys
sys.path.insert(0, {cases!r})
import torch
from case_191499 import build
print("the program prints")
function, inputs = build()
torch.compile(function)(*inputs)
sys.exit(7)
"""


@pytest.mark.thorough
def test_a_function_is_compared_and_its_guilty_graph_minified(tmp_path: Path) -> None:
    only_here()
    words = ("minify", f"{CASES}/case_191499.py:build", "--out", tmp_path / "run", "--json", "--no-explain")
    found = answer(torchrepro(*words))
    assert (found["ops"], found["minimal"]) == (1, True)
    assert is_own(Path(found["bundle"])), "its script was written after it was sealed"
    again = answer(torchrepro(*words))
    assert again["script"] == found["script"]
    assert any("--fresh runs it again" in note for note in again["notes"])


@pytest.mark.thorough
def test_a_program_is_run_watched_and_its_first_failure_minified(tmp_path: Path) -> None:
    only_here()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(cases=str(CASES)))
    finished = torchrepro("minify", program, "--json", "--no-explain", cwd=tmp_path)
    found = answer(finished)
    assert finished.returncode == 0, finished
    assert "the program prints" in finished.stderr
    assert (found["ops"], found["signature"]) == (1, "mismatch")
    assert found["directory"] == str(tmp_path / "program.minified")
    assert any("the first failure" in note for note in found["notes"])

    finished = torchrepro("run", "--level", "4", "--minify", program, cwd=tmp_path)
    assert finished.returncode == 7, "the exit code is the program's own"
    assert finished.stdout == "the program prints\n"
    assert finished.stderr.splitlines()[-1].endswith("minimal/repro.py")


def only_here() -> None:
    if not torch.__version__.startswith("2.13"):
        pytest.skip("the bugs are those of torch 2.13")
