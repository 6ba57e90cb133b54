"""Watching on an accelerator leaves streams, CUDA graphs and autotuning as they are; searches are quick."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchrepro import watch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("level", [3, 4])
@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_a_healthy_model_on_a_stream_gives_what_eager_gives(mode: str, level: int, tmp_path: Path) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)).cuda()
    inputs = [torch.randn(16, 32, device="cuda") for _ in range(5)]
    stream = torch.cuda.Stream()
    with torch.no_grad(), watch(level=level, out=tmp_path) as session:
        compiled = torch.compile(model, mode=mode)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results = [compiled(x).clone() for x in inputs]
        stream.synchronize()
    assert session.kept == []
    with torch.no_grad():
        for x, result in zip(inputs, results, strict=True):
            torch.testing.assert_close(result, model(x))


@pytest.mark.parametrize("level", [3, 4])
def test_a_training_step_with_cuda_graphs_gives_what_eager_gives(level: int, tmp_path: Path) -> None:
    torch.compiler.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 8)).cuda()
    x = torch.randn(16, 32, device="cuda")
    with watch(level=level, out=tmp_path) as session:
        compiled = torch.compile(model, mode="reduce-overhead")
        for _ in range(4):
            model.zero_grad()
            torch.compiler.cudagraph_mark_step_begin()
            compiled(x).square().mean().backward()
            found = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    assert session.kept == []
    model.zero_grad()
    model(x).square().mean().backward()
    for gradient, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


_PROGRAM = """\
import torch
import torch._inductor.config as config

config.triton.inject_relu_bug_TESTING_ONLY = "{bug}"
model = torch.compile(lambda x: torch.relu(x.sin() @ x).softmax(-1))
model(torch.randn(64, 64, device="cuda"))
torch.cuda.synchronize()
"""


@pytest.mark.parametrize(("bug", "level"), [("compile_error", 2), ("accuracy", 4), ("runtime_error", 3)])
def test_a_failure_is_minified_and_located_by_workers_that_were_forked(
    bug: str, level: int, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM.format(bug=bug))
    watched = ("-m", "torchrepro", "run", "--level", str(level), "--minify", "--no-explain", "--locate")
    command = [sys.executable, *watched, "--out", str(tmp_path / "out"), str(program)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    (result,) = (tmp_path / "out").glob("*.minified/result.json")
    found = json.loads(result.read_text())
    assert (found["ops"], found["reproduces"]) == (1, True), ended.stderr
    assert "workers forked" in [moment["name"] for moment in found["timeline"]]
    (place,) = (tmp_path / "out").glob("*/located/result.json")
    assert json.loads(place.read_text())["op"]["op"] == "torch.relu"
