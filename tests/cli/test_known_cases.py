"""`torchrepro compare` on real bugs of torch 2.13.0: the right verdict, and the right one blamed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import CASES, answer, torchrepro
from expected import ANSWERS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not torch.__version__.startswith("2.13."),
        reason=f"the cases are bugs of torch 2.13, this is {torch.__version__}: they may be mended or others",
    ),
]


def thorough(*names: str) -> list[Any]:
    """Cases whose kind of failure another one stands for in CI."""
    return [pytest.param(name, marks=pytest.mark.thorough) for name in names]


SAVED = ("case_191499b", "case_185246")
WITH_BUNDLE = [
    *thorough("case_185246"),  # CI has bundles and their scripts in tests/catch and tests/script
    *thorough("case_197067"),  # a segfault: CI has those of tests/catch/test_caught.py
    *thorough("case_191499b"),  # CI ends `minify` of the same bug with a script
    *thorough("case_179804", "case_198131", "case_194706", "case_fuzz_softshrink_nan"),
]
"""Saved, checked and run by their scripts as well."""
OF_CAPTURE = thorough("case_192985", "case_197896")  # `run --whole` has both in CI
OTHERS = [name for name in ANSWERS if name not in (*SAVED, "case_192985", "case_197896")]
LIKE_ANOTHER = {
    *(name for name in OTHERS if name.endswith("_big")),
    *("case_191499", "case_188217", "case_194706", "case_fuzz_acosh", "case_196570", "case_198131"),
    *("case_197067", "case_fuzz_gelu"),  # a crash as in tests/catch; the trap has a test of its own here
}
ALONE = [name for name in OTHERS if name not in LIKE_ANOTHER] + thorough(*sorted(LIKE_ANOTHER))


def compared(name: str, *options: object) -> dict[str, Any]:
    """The answer for a case, which must be the known one."""
    expected = ANSWERS[name]
    finished = torchrepro("compare", f"{CASES / name}.py:build", "--json", *options)
    found = answer(finished)
    assert found["verdict"] in expected.verdicts, found
    assert found["blamed"] == expected.blamed
    assert finished.returncode == expected.exit_code
    if expected.path:
        assert any(expected.path in leaf["path"] for leaf in found["details"]["comparison"]["differing"])
    return found


@pytest.mark.parametrize("name", ALONE)
def test_the_verdict_is_the_known_one(name: str) -> None:
    compared(name)


def test_a_correct_compiler_is_not_blamed_for_an_overflow_of_eager() -> None:
    finished = torchrepro("compare", f"{CASES / 'case_fuzz_gelu'}.py:build")
    assert finished.returncode == 0
    assert "eager is wrong" in finished.stdout


@pytest.mark.parametrize("name", WITH_BUNDLE)
def test_the_saved_bundle_fails_as_recorded_and_so_does_its_script(name: str, tmp_path: Path) -> None:
    found = compared(name, "--save", tmp_path)
    assert found["bundle"] is not None, found["notes"]
    bundle = Path(found["bundle"])
    checked = torchrepro("check", bundle, "--json")
    assert answer(checked)["reproduces"] is True, checked.stdout
    state = json.loads((bundle / "manifest.json").read_text())["ambient"]
    assert state["configs"] == {}, "what the tool itself sets is no part of the user's state"
    assert checked.returncode == 1
    script = subprocess.run(
        [sys.executable, str(bundle / "repro.py")], cwd="/", capture_output=True, text=True
    )
    assert script.returncode != 0, script.stdout + script.stderr
    assert "Traceback" not in script.stderr, script.stderr


@pytest.mark.parametrize("name", OF_CAPTURE)
def test_a_failure_of_capture_has_no_guilty_graph_and_says_so(name: str, tmp_path: Path) -> None:
    found = compared(name, "--save", tmp_path)
    assert found["bundle"] is None
    assert any("capture" in note for note in found["notes"])
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough  # CI has the real bugs above
def test_the_example_of_a_quantised_model_is_found_wrong() -> None:
    example = CASES.parent.parent.parent / "examples" / "quantised_cnn.py"
    finished = torchrepro("compare", f"{example}:build")
    assert finished.returncode == 1
    assert finished.stdout.startswith("mismatch: out at [1, 2]: 20 of 20 elements")
