"""A program whose own pass, lowering or decomposition is wrong: bundle and script contain it, and fail."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import answer, torchrepro

CASE = Path(__file__).resolve().parents[1] / "cases" / "custom_pass"
PROGRAM = """
import torch
import torch._inductor.config
import torch._inductor.decomposition
import torch._inductor.lowering

aten = torch.ops.aten
LIMIT = 0.5


def wrong_pass(graph):
    for node in list(graph.nodes):
        if node.target is aten.tanh.default:
            with graph.inserting_before(node):
                new = graph.call_function(aten.clamp_max.default, (node.args[0], LIMIT))
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            graph.erase_node(node)


def wrong_lowering(x):
    return torch._inductor.lowering.lowerings[aten.clamp_max.default](x, LIMIT)


def wrong_decomposition(x, approximate="none"):
    return torch.clamp_max(x, LIMIT)


def model(x):
    return torch.nn.functional.gelu(x.sin()) + torch.tanh(x + 1)


if __name__ == "__main__":
    {statement}
    torch.compile(model)(torch.linspace(0, 4, 8))
"""
STATEMENTS = {
    "wrong_pass": "torch._inductor.config.post_grad_custom_post_pass = wrong_pass",
    "wrong_lowering": "torch._inductor.lowering.register_lowering(aten.tanh.default)(wrong_lowering)",
    "wrong_decomposition": "torch._inductor.decomposition.decompositions[aten.gelu.default] = "
    "wrong_decomposition",
}


def minified_script(directory: Path, program: str) -> str:
    """The script that `run --minify` leaves; it was seen to fail in a fresh process, and fails again here."""
    done = torchrepro("run", "--level", 4, "--out", "out", "--minify", program, cwd=directory)
    assert done.returncode == 0, done.stderr
    assert "minimal: fails in a fresh process" in done.stderr
    script = Path(done.stderr.strip().splitlines()[-1])
    again = subprocess.run(
        [sys.executable, script], cwd=directory, capture_output=True, text=True, timeout=120
    )
    assert "AssertionError" in again.stderr
    return script.read_text()


@pytest.mark.thorough
def test_a_wrong_pass_is_in_the_script_and_blamed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(statement=STATEMENTS["wrong_pass"]))
    script = minified_script(tmp_path, "program.py")
    assert "def wrong_pass(graph):" in script
    assert "torch._inductor.config.post_grad_custom_post_pass = wrong_pass" in script
    (bundle,) = (path for path in (tmp_path / "out").iterdir() if path.name.endswith("-mismatch"))
    located = answer(torchrepro("locate", bundle, "--json", "--quiet", cwd=tmp_path))
    assert located["blamed"] == "pass wrong_pass in inductor.post_grad_custom_post_pass"
    assert located["confidence"] == "verified"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["wrong_lowering", "wrong_decomposition"])
def test_what_the_user_registered_wrongly_is_in_the_script(name: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.format(statement=STATEMENTS[name]))
    script = minified_script(tmp_path, "program.py")
    assert f"def {name}(" in script
    assert re.search(rf"aten\.\w+\.default\S* ?=?\(?.*{name}", script)


@pytest.mark.thorough
def test_a_model_in_training_with_a_wrong_pass_becomes_one_op_and_the_pass(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    shutil.copytree(CASE, tmp_path, dirs_exist_ok=True)
    script = minified_script(tmp_path, "train_with_custom_pass.py")
    assert "def cheaper_gelu(" in script
    assert script.count("torch.tanh(") == 1
