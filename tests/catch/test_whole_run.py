"""`torchrepro run --whole`: failures of capture itself, from a program to a bundle that shows them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REAL = Path(__file__).parent.parent / "cases" / "real"

PROGRAM = """
import torch
import case_192985, case_197896

function, arguments = case_192985.build()
print(torch.compile(function, backend="eager")(*arguments).tolist())
function, arguments = case_197896.build()
torch.compile(function, backend="eager")(*arguments)
print(function.state)
healthy = torch.nn.BatchNorm1d(2)
torch.compile(healthy, backend="eager")(torch.ones(2, 2))
print(healthy.num_batches_tracked.item())
"""


@pytest.mark.slow
def test_failures_of_capture_leave_a_bundle_each(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    alone = _run([str(program)], tmp_path)
    watched = _run(["-m", "torchrepro", "run", "--whole", "--out", "out", str(program)], tmp_path)
    assert watched.stdout == alone.stdout
    assert watched.returncode == 0
    caught = json.loads((tmp_path / "out" / "summary.json").read_text())["bundles"]
    assert [(found["verdict"], found["place"]) for found in caught] == [("mismatch", "before_capture")] * 2
    for found in caught:
        checked = _run(["-m", "torchrepro", "check", "--trust", "source", found["path"]], tmp_path)
        assert checked.returncode == 1, checked.stderr


def _run(arguments: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REAL), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, *arguments], cwd=directory, env=environ, capture_output=True, text=True, timeout=280
    )
