"""The standalone `repro.py`: plain torch, exits 1 exactly if the recorded failure shows again."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from capturing import capture

from torchrepro import Compiler, Kind, Place, Repro, Signature, save_bundle
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.graph_text.metadata import symbols_of
from torchrepro.state.ambient import capture_ambient

pytestmark = pytest.mark.slow

INJECTED = "cpp.inject_relu_bug_TESTING_ONLY"
"""A setting of torch itself that breaks the kernel of relu."""


def saved(repro: Repro, path: Path) -> Path:
    """A bundle with the verdict that the repro gets now."""
    verdict = judge_repro(repro)
    return save_bundle(replace(repro, expected=Signature.of(verdict)), path, verdict=verdict)


def run(bundle: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(bundle / "repro.py")], cwd="/", capture_output=True, text=True, timeout=200
    )


def with_bug(repro: Repro, bug: str) -> Repro:
    return replace(repro, ambient=replace(capture_ambient(), configs={"inductor": {INJECTED: bug}}))


def without_bug(bundle: Path) -> None:
    """The same script on a compiler that has been mended."""
    script = bundle / "repro.py"
    kept = [line for line in script.read_text().splitlines() if INJECTED not in line]
    script.write_text("\n".join(kept))


def relu(dynamic: bool | None) -> Repro:
    (found,) = (
        item
        for item in capture(lambda x: torch.relu(x).sum(-1), torch.randn(5, 33), dynamic=dynamic)
        if item.place == "inference"
    )
    return Repro(found.graph, found.inputs, Place.AFTER_AOT, symbols=symbols_of(found.graph))


@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=pytest.mark.thorough)])
def test_after_aot_a_wrong_value_shows_and_a_mended_compiler_passes(
    dynamic: bool | None, tmp_path: Path
) -> None:
    bundle = saved(with_bug(relu(dynamic), "accuracy"), tmp_path / "b")
    failing = run(bundle)
    assert failing.returncode == 1, failing.stdout + failing.stderr
    assert failing.stdout.endswith("reproduced\n")
    without_bug(bundle)
    mended = run(bundle)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert mended.stdout.endswith("not reproduced\n")


@pytest.mark.thorough
def test_a_compile_error_shows_and_another_error_does_not_count(tmp_path: Path) -> None:
    graph = torch.fx.symbolic_trace(lambda x: (torch.relu(x),))
    repro = with_bug(Repro(graph, (torch.randn(33),)), "compile_error")
    bundle = saved(repro, tmp_path / "b")
    failing = run(bundle)
    assert failing.returncode == 1, failing.stdout + failing.stderr
    assert "CppCompileError" in failing.stdout
    script = bundle / "repro.py"
    script.write_text(script.read_text().replace("compile_error", "runtime_error"))
    other = run(bundle)
    assert other.returncode == 0, other.stdout + other.stderr


def test_values_that_no_line_of_code_makes_come_from_beside_the_script(tmp_path: Path) -> None:
    graph = torch.fx.symbolic_trace(lambda a, b, c: (torch.sparse.mm(a, b), c))
    coo = torch.eye(3).to_sparse()
    non_leaf = torch.ones(3, 2, requires_grad=True) * 2
    inputs = (coo, non_leaf, torch.tensor([1 + 2j]).conj())
    bundle = save_bundle(Repro(graph, inputs, compiler=Compiler("aot_eager")), tmp_path / "b")
    assert (bundle / "values.pt").exists()
    finished = run(bundle)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_nested_graphs_constants_and_state_are_in_the_script(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> Any:
        scaled = x * torch.tensor([0.5, 2.0])
        return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (scaled,))

    found = capture(function, torch.ones(3, 2))[0]
    repro = Repro(found.graph, found.inputs, compiler=Compiler("aot_eager"))
    finished = run(save_bundle(repro, tmp_path / "b"))
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_a_script_that_cannot_be_made_says_where_to_go(tmp_path: Path) -> None:
    from torchrepro.bundle.manifest import decode_manifest
    from torchrepro.script.bundle_script import standalone_script

    graph = torch.fx.symbolic_trace(lambda x: (torch.relu(x),))
    bundle = save_bundle(Repro(graph, (torch.ones(2),)), tmp_path / "b")
    manifest = decode_manifest((bundle / "manifest.json").read_bytes(), "here")
    text = "class Graph:\n    def forward(self, x):\n        y = sym(u0)\n        return y\n"
    assert "torchrepro check" in standalone_script(manifest, text, None)


@pytest.mark.thorough
def test_a_signature_without_a_failure_makes_a_script_that_only_runs(tmp_path: Path) -> None:
    graph = torch.fx.symbolic_trace(lambda x: (torch.relu(x),))
    repro = Repro(graph, (torch.ones(2),), compiler=Compiler("eager"), expected=Signature(Kind.PASS))
    assert run(save_bundle(repro, tmp_path / "b")).returncode == 0
