"""`torchrepro capture`: what users see of how their Python becomes graphs, right and wrong use alike."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import answer, torchrepro

pytestmark = pytest.mark.slow

PROGRAM = """
import torch

def scaled(x):
    return x * 2

def forward(x):
    y = scaled(x)
    if y.sum() > 0:
        print("this is not part of the answer")
        y = y + 1
    return y

def build():
    return forward, (torch.ones(3),)

def straight():
    return scaled, (torch.ones(3),)

class Counted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
    def forward(self, x, *, scale=1.0):
        return self.linear(x) * scale

def module():
    return Counted(), (torch.ones(1, 2),), {"scale": 3.0}

def failing():
    return (lambda x: x @ torch.ones(5, 5)), (torch.ones(3),)

def exiting():
    return (lambda x: raise_exit(3)), (torch.ones(3),)

def raise_exit(code):
    raise SystemExit(code)

def unbuilt():
    raise ValueError("no data")

def slow():
    import time
    def f(x):
        time.sleep(60)
        return x
    return f, (torch.ones(1),)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("capture") / "program.py"
    path.write_text(PROGRAM)
    return path


def test_graphs_and_breaks_in_a_pipe_of_eighty_columns(program: Path) -> None:
    finished = torchrepro("capture", "program.py:build", "--guards", "--graphs", "--code", cwd=program.parent)
    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert lines[0].startswith("forward became 2 graphs with 4 operations")
    assert max(map(len, lines)) <= 80
    assert not any(line != line.rstrip() for line in lines)
    assert "\x1b" not in finished.stdout
    for words in (
        "program.py:9 in forward",
        "if y.sum() > 0:",
        "instead: ",
        "used again as long as",
        "def region(",
    ):
        assert words in finished.stdout
    assert "this is not part of the answer\n" not in finished.stdout
    assert finished.stderr == ""


def test_details_are_left_out_unless_asked_for(program: Path) -> None:
    told = torchrepro("capture", f"{program}:build").stdout
    assert "used again" not in told
    assert "def forward" not in told
    assert "def region" not in told


def test_the_answer_as_one_json_object(program: Path) -> None:
    finished = torchrepro("capture", f"{program}:build", "--json", "--verify", "--dynamo")
    assert finished.returncode == 0, finished.stderr
    found = answer(finished)
    assert (found["name"], found["graphs"], found["ops"], found["whole"]) == ("forward", 2, 4, False)
    first = found["breaks"][0]
    assert (first["kind"], first["place"]["line"], first["expression"]) == (
        "data_dependent",
        9,
        "y.sum() > 0",
    )
    assert first["place"]["file"] == str(program)
    assert found["regions"][0]["inputs"][0] == {"source": "argument x", "tensor": "float32 (3,)"}
    assert found["verified"] == {"same": True, "detail": ""}
    assert found["dynamo"]["agreements"][1] == {"who": "dynamo", "same": True, "detail": ""}
    assert found["failed"] == []
    assert {"summary", "inlined", "native", "raised", "notes"} <= set(found)


def test_fullgraph_with_a_break_is_exit_1_and_still_told(program: Path) -> None:
    finished = torchrepro("capture", f"{program}:build", "--fullgraph")
    assert finished.returncode == 1
    assert finished.stdout.splitlines()[-1] == "failed: it is not one graph, as --fullgraph asks for"
    assert "break 1" in finished.stdout


def test_fullgraph_without_one_is_exit_0(program: Path) -> None:
    finished = torchrepro("capture", f"{program}:straight", "--fullgraph", "--verify")
    assert finished.returncode == 0
    assert "one graph" in finished.stdout
    assert "verified: it gives what plain Python gives" in finished.stdout


def test_a_wrong_result_of_a_backend_is_exit_1(program: Path) -> None:
    (program.parent / "wrong_backend.py").write_text(
        "def one_more(graph, inputs):\n    return lambda *args: [out + 1 for out in graph(*args)]\n"
    )
    words = ("capture", "program:straight", "--verify", "--backend", "wrong_backend:one_more")
    finished = torchrepro(*words, cwd=program.parent)
    assert finished.returncode == 1, finished.stderr
    assert "failed: torchrepro differs from Python" in finished.stdout
    assert answer(torchrepro(*words, "--json", cwd=program.parent))["verified"]["same"] is False


def test_a_module_with_keywords_by_the_name_of_its_module(program: Path) -> None:
    found = answer(torchrepro("capture", "program:module", "--json", "--fullgraph", cwd=program.parent))
    assert (found["name"], found["whole"]) == ("Counted", True)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("{dir}/nowhere.py:build", ["no file"]),
        ("{program}:nothing", ["'nothing'", "it has: scaled, forward, build"]),
        ("{program}:scaled", ["takes arguments (x)", "returns (scaled, inputs)"]),
        ("{program}:unbuilt", ["unbuilt raises ValueError: no data", "make it run in plain Python first"]),
        ("{program}:exiting", ["the program ends itself (SystemExit: 3)", "let it return instead"]),
        ("{program}", ["FILE.py:FUNCTION"]),
        ("no_such_package.models:build", ["no_such_package"]),
        ("{program}:failing", ["fails without capture too", "plain Python first"]),
    ],
)
def test_a_target_that_is_none_is_one_line_with_the_next_step(
    program: Path, target: str, words: list[str]
) -> None:
    finished = torchrepro("capture", target.format(dir=program.parent, program=program))
    assert finished.returncode == 125, finished
    assert finished.stdout == ""
    (line,) = finished.stderr.strip().splitlines()
    assert line.startswith("torchrepro: ")
    for word in words:
        assert word in line


def test_an_unknown_backend_names_the_nearest(program: Path) -> None:
    finished = torchrepro("capture", f"{program}:build", "--backend", "inducto", "--json")
    assert finished.returncode == 125
    assert "did you mean 'inductor'?" in answer(finished)["next_step"]


def test_a_wrong_flag_is_exit_125(program: Path) -> None:
    finished = torchrepro("capture", f"{program}:build", "--grpahs")
    assert finished.returncode == 125
    assert "Traceback" not in finished.stderr


def test_a_reader_that_goes_away_is_no_traceback(program: Path) -> None:
    piped = subprocess.run(
        f"{sys.executable} -m torchrepro capture {program}:build --guards | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert piped.stdout.startswith("forward became")
    assert "Traceback" not in piped.stderr
    assert "Broken" not in piped.stderr


def test_a_call_without_end_names_the_option(program: Path) -> None:
    finished = torchrepro("capture", f"{program}:slow", "--time-limit", "10")
    assert finished.returncode == 125
    assert "no answer after 10 s; raise --time-limit" in finished.stderr


def test_ctrl_c_ends_it_at_once(program: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "torchrepro", "capture", f"{program}:slow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A job in the background of a shell ignores the signal, and its children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(8)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert err == "torchrepro: interrupted; no process is left behind\n"


def test_help_says_what_capturing_is_and_needs_no_torch() -> None:
    asked = (
        "import sys, typer.testing, torchrepro.cli.app as app\n"
        "told = typer.testing.CliRunner().invoke(app.app, ['capture', '--help'])\n"
        "print('how Python becomes graphs' in ' '.join(told.output.split()), 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["True", "False"]
