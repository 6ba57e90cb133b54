"""Catching on an accelerator: a fault belongs to the call that caused it, and the bundles check there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from torchrepro import watch
from torchrepro.bundle.load import load_bundle
from torchrepro.catch import hook

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

PROGRAM = """
import sys
import torch
import torch._inductor.config as config

class Block(torch.nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(x)))

bug = sys.argv[1]
config.triton.inject_relu_bug_TESTING_ONLY = None if bug == "none" else bug
torch.manual_seed(0)
model = torch.nn.Sequential(Block(), Block()).cuda()
compiled = torch.compile(model)
x = torch.randn(2, 16, 64, device="cuda")
with torch.autocast("cuda", dtype=torch.bfloat16, enabled="amp" in sys.argv):
    out = compiled(x)
    out = compiled(x * 2)
out.float().sum().backward()
torch.cuda.synchronize()
print("the end")
"""


def watched(bug: str, level: int, tmp_path: Path, *words: str) -> tuple[str, list[dict[str, Any]]]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    out = tmp_path / "out"
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "torchrepro",
            "run",
            "--level",
            str(level),
            "--out",
            str(out),
            program,
            bug,
            *words,
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")},
        timeout=400,
        check=False,
    )
    print(finished.stderr[-3000:])
    return finished.stdout + finished.stderr, json.loads((out / "summary.json").read_text())["bundles"]


def check(bundle: str) -> int:
    finished = subprocess.run(
        [sys.executable, "-m", "torchrepro", "check", bundle],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    print(finished.stdout, finished.stderr[-2000:])
    return finished.returncode


@pytest.mark.parametrize(
    ("bug", "level", "kinds"),
    [
        ("compile_error", 3, {"compile_error"}),
        ("runtime_error", 3, {"run_error", "crash"}),
        ("accuracy", 4, {"mismatch", "non_finite"}),
    ],
)
def test_a_bug_of_triton_code_is_caught_and_its_bundle_checks(
    bug: str, level: int, kinds: set[str], tmp_path: Path
) -> None:
    output, bundles = watched(bug, level, tmp_path)
    assert bundles, output
    assert bundles[0]["verdict"] in kinds
    assert check(bundles[0]["path"]) == 1


def test_a_healthy_program_leaves_none(tmp_path: Path) -> None:
    output, bundles = watched("none", 4, tmp_path, "amp")
    assert bundles == [], output
    assert "the end" in output


_OUT_OF_BOUNDS = """
import torch

@torch.compile
def f(x, places):
    return x[places].sin() * 2

f(torch.randn(8, device="cuda"), torch.tensor([1, 900_000_000], device="cuda"))
torch.cuda.synchronize()
"""


def test_an_index_out_of_bounds_in_the_users_own_code_is_not_the_compilers_fault(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_OUT_OF_BOUNDS)
    command = [
        sys.executable,
        "-m",
        "torchrepro",
        "run",
        "--level",
        "3",
        "--out",
        str(tmp_path / "out"),
        program,
    ]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert finished.returncode != 0
    assert "the device fails without the compiler, too" in finished.stderr
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["bundles"] == []


def test_the_state_of_the_device_is_kept(tmp_path: Path) -> None:
    def failing(graph: Any, example_inputs: Any) -> Any:
        raise NotImplementedError("no kernel")

    torch.cuda.manual_seed(3)
    state = torch.cuda.get_rng_state()
    context = torch.autocast("cuda", dtype=torch.bfloat16)
    with watch(level=2, out=tmp_path) as session, context, pytest.raises(Exception, match="no kernel"):
        torch.compile(lambda x: x @ x, backend=failing)(torch.eye(4, device="cuda:0"))
    repro = load_bundle(session.kept[0], trusted=("source",))
    assert [(cast.device, cast.dtype) for cast in repro.ambient.autocast] == [("cuda", "bfloat16")]
    assert torch.equal(repro.ambient.rng["cuda:0"], state)
    assert repro.inputs[0].device == torch.device("cuda:0")


@pytest.mark.parametrize(("level", "waits"), [(1, 0), (2, 0), (3, 3), (4, 3)])
def test_the_device_is_waited_for_from_level_3_on(
    level: int, waits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    monkeypatch.setattr(hook, "synchronise", lambda: counted.append(1))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend="eager")
    with watch(level=level, out=tmp_path):
        for _ in range(3):
            compiled(torch.ones(3, device="cuda"))
    assert len(counted) == waits
