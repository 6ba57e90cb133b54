"""A failure is searched in forks of the process in which it happened, else in a fresh one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchrepro.catch import search_here
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Ambient, Repro
from torchrepro.nouns.results import Located, Minified
from torchrepro.script.save_bundle import save_bundle

pytestmark = pytest.mark.slow

_PROGRAM = """\
import threading
import torch
import torch._inductor.config as inductor
from torch import nn

from torch._inductor import lowering

def wrong_cos(x):  # lives only in this process, and is no setting: a fresh process would not fail
    return cos(x * 1.5)

overload = torch.ops.aten.cos.default
cos = lowering.lowerings[overload]
ATTACK

torch.manual_seed(0)
# The process has threads, an OpenMP team and compiled code before anything fails.
torch.compile(lambda x: x.sin() @ x)(torch.randn(256, 256))
threading.Thread(target=threading.Event().wait, daemon=True).start()

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)).cos()).softmax(-1)

with torch.no_grad():
    print("answer", torch.compile(Model())(torch.randn(8, 16)).shape)
"""
_LOCAL = """
def replace_cos(graph):
    for node in graph.nodes:
        if node.target is torch.ops.aten.cos.default:
            node.target = torch.ops.aten.sin.default

inductor.post_grad_custom_post_pass = replace_cos
"""
_REGISTERED = """
lowering.lowerings[overload] = lambda x: cos(lowering.lowerings[torch.ops.aten.mul.Tensor](x, 1.5))
"""


def run(directory: Path, attack: str, *options: str) -> subprocess.CompletedProcess[str]:
    (directory / "program.py").write_text(_PROGRAM.replace("ATTACK", attack))
    command = [
        sys.executable,
        "-m",
        "torchrepro",
        "run",
        "--level",
        "4",
        "--out",
        "out",
        *options,
        "program.py",
    ]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=280)


def test_the_program_goes_on_after_its_failure_was_minified_in_its_forks(tmp_path: Path) -> None:
    ended = run(tmp_path, _LOCAL, "--minify")
    assert ended.returncode == 0, ended.stderr
    assert "answer torch.Size([8, 4])" in ended.stdout
    assert "fresh process:" not in ended.stderr, "forks worked"
    (result,) = (tmp_path / "out").glob("*.minified/result.json")
    found = json.loads(result.read_text())
    assert found["reproduces"], found["notes"]
    assert found["ops"] == 1
    assert found["original_runs"] == 0
    script = Path(found["script"]).read_text()
    assert "replace_cos" in script, "the pass is part of the failure"
    assert script in ended.stderr, "the command prints what the program found"


@pytest.mark.thorough
def test_where_forks_cannot_be_trusted_a_fresh_process_takes_over_and_says_why(tmp_path: Path) -> None:
    ended = run(tmp_path, _REGISTERED, "--minify", "--go-on")
    assert "answer torch.Size([8, 4])" in ended.stdout
    assert "searching in a fresh process: lowerings or decompositions that you registered" in ended.stderr


def test_a_fork_that_does_not_answer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchrepro.engine.search import setup

    monkeypatch.setattr(setup, "_REHEARSAL_HERE", 0.0)
    with pytest.raises(TorchReproError, match=r"did not answer within 0 s"):
        setup.require_forks()


_SAVES = """
import torch, torchrepro
import torch._inductor.config as inductor

def replace_cos(graph):
    for node in graph.nodes:
        if node.target is torch.ops.aten.cos.default:
            node.target = torch.ops.aten.sin.default

inductor.post_grad_custom_post_pass = replace_cos
model = torch.compile(lambda x: x.relu().cos().sum())
x = torch.linspace(0, 1, 64)
if abs(model(x) - x.cos().sum()) > 0.1:
    print(torchrepro.save_repro(model, (x,), minify=True))
"""


@pytest.mark.thorough
def test_a_call_can_be_saved_and_minified_at_once(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(_SAVES)
    command = [sys.executable, "program.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    bundle = Path(ended.stdout.strip())
    found = json.loads((bundle.parent / f"{bundle.name}.minified" / "result.json").read_text())
    assert (found["ops"], found["reproduces"]) == (1, True), found["notes"]


@pytest.mark.thorough  # CI has a search in forks of the failing program
def test_a_process_on_standby_runs_one_search_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(search_here, "why_not_here", lambda: "a device is in use")
    config = {"inductor": {"cpp.inject_relu_bug_TESTING_ONLY": "compile_error"}}
    graph = torch.fx.symbolic_trace(lambda x: (torch.relu(x.sin()),))
    repro = Repro(graph, (torch.ones(3),), ambient=Ambient(configs=config))
    bundle = save_bundle(repro, tmp_path / "bundle", verdict=judge_repro(repro))
    here = search_here.SearchHere(bundle, ("minify", "locate"), search_here.Standby(), explain=False)
    here.wait()
    said = capfd.readouterr().err
    minified, located = here.found
    assert isinstance(minified, Minified)
    assert (minified.ops, minified.reproduces) == (1, True), said
    assert isinstance(located, Located)
    assert located.op is not None
    assert located.op.op == "torch.relu"
    assert said.count("searching in a fresh process: a device is in use") == 2
    assert "another fresh process" not in said
