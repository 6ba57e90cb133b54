"""The proof on failing programs: a launcher of torch's own tool, imported, fails as our own bundle does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import CASES, answer, torchrepro
from test_injected_cases import INJECTED, environment, run_watched, script

from torchrepro import pipeline
from torchrepro.nouns.repro import ModelRequest

pytestmark = pytest.mark.thorough
_PROGRAM = """
import sys, torch
sys.path.insert(0, {directory!r})
from {module} import build
function, inputs = build()[:2]
torch.compile(function)(*inputs)
"""


def written_by_torch(command: list[str], after: str, level: object, place: Path, **more: str) -> Path:
    """Run a program under torch's own tool; return the launcher that it leaves."""
    environ = os.environ | {
        "TORCHDYNAMO_REPRO_AFTER": after,
        "TORCHDYNAMO_REPRO_LEVEL": str(level),
        "TORCH_COMPILE_DEBUG_DIR": str(place),
        "TORCHINDUCTOR_CACHE_DIR": str(place / "cache"),
        **more,
    }
    # In its working directory torch writes repro.py.
    subprocess.run([sys.executable, *command], env=environ, cwd=place, capture_output=True, timeout=280)
    (launcher,) = place.rglob("minifier_launcher.py")
    return launcher


@pytest.mark.parametrize("case", ["case_191499", "case_194706", "case_196570"])
def test_a_real_bug(case: str, tmp_path: Path) -> None:
    own = pipeline.compare_model(ModelRequest(f"{CASES / case}.py:build"))
    assert own.verdict.fails
    level = 4 if own.verdict.comparison is not None else 2
    program = _PROGRAM.format(directory=str(CASES), module=case)
    launcher = written_by_torch(["-c", program], "aot", level, tmp_path)
    (one,) = pipeline.import_artefacts(launcher, out=tmp_path / "bundle").bundles
    assert pipeline.check_bundle(one.bundle).signature.matches(own.signature)


# Not c02: ours is a crash by SIGABRT, the imported launcher a RuntimeError. The cause is unknown: perhaps
# the number of threads, which an artefact does not keep, decides whether the exception leaves its thread.
@pytest.mark.parametrize(
    "name", ["c01_mlp_relu_cpp_compile_error", "c16_transformer_dynamic_erf_compile_error"]
)
def test_an_injected_bug(name: str, tmp_path: Path) -> None:
    case = json.loads((INJECTED / name / "case.json").read_text())
    _, (bundle, *_) = run_watched(name, tmp_path / "ours")
    launcher = written_by_torch(
        [str(script(name))], case["after"], case["level"], tmp_path, **environment(name)
    )
    # The bug is in this environment's compiler, which the sandbox does not let in.
    told = answer(torchrepro("import", launcher, "--out", tmp_path / "theirs", "--trust", "bundle", "--json"))
    found = answer(torchrepro("check", told["bundles"][0], "--json", **environment(name)))
    assert found["signature"] == bundle["signature"]
