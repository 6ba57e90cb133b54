"""`make demo` does the main job end to end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the demo's bug is one of torch 2.13")
def test_the_demo_catches_minifies_and_shows_a_script_that_fails() -> None:
    finished = subprocess.run(
        [sys.executable, "examples/demo.py"], cwd=ROOT, capture_output=True, text=True, timeout=580
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "$ torchrepro run" in finished.stdout
    assert "$ torchrepro minify" in finished.stdout
    script = ROOT / finished.stdout.strip().splitlines()[-1]
    text = script.read_text()
    assert text in finished.stdout, "the script is shown as it is"
    assert len(text.splitlines()) <= 25
    assert "AssertionError" in finished.stderr
