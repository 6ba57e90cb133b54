"""The examples in the documentation run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["catching.md"])
def test_the_examples_run(page: str, tmp_path: Path) -> None:
    blocks = BLOCK.findall((DOCS / page).read_text())
    assert blocks
    # One after the other in one process, each with names of its own: importing torch takes longer than all.
    program = tmp_path / "examples.py"
    program.write_text(
        "\n\n".join(f"def example_{i}():\n" + _indented(block) for i, block in enumerate(blocks))
        + "\n\n"
        + "\n".join(f"example_{i}()" for i in range(len(blocks)))
    )
    finished = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert "torchrepro: could not" not in finished.stderr
    kept, saved = finished.stdout.splitlines()
    assert kept == "[]"
    assert (Path(saved) / "manifest.json").exists()


@pytest.mark.slow
def test_the_examples_of_minifying_run(tmp_path: Path) -> None:
    oracle, api = BLOCK.findall((DOCS / "minifying.md").read_text())
    (tmp_path / "oracle.py").write_text(oracle)
    # The second example, with the oracle of the first one told what the second one wants.
    (tmp_path / "api.py").write_text(api + "\nimport oracle\nprint(oracle.fails(minified.bundle))\n")
    finished = subprocess.run(
        [sys.executable, "api.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
    )
    assert finished.returncode == 0, finished.stderr
    told, large = finished.stdout.splitlines()
    minimal, ops, script = told.split(maxsplit=2)
    assert (minimal, ops, large) == ("True", "1", "False")
    assert Path(script).exists()


@pytest.mark.slow
def test_the_examples_of_the_front_end_run_and_print_what_the_page_shows(tmp_path: Path) -> None:
    page = (DOCS / "frontend.md").read_text()
    first, *others = BLOCK.findall(page)
    shown = re.search(r"^```\n(forward became.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert shown is not None
    (tmp_path / "model.py").write_text(first)
    (tmp_path / "others.py").write_text("\n\n".join(others))
    printed = {}
    for name in ("model.py", "others.py"):
        finished = subprocess.run(
            [sys.executable, name], cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False
        )
        assert finished.returncode == 0, finished.stderr
        printed[name] = finished.stdout
    assert printed["model.py"] == shown[1]
    summary, counts, bundle = printed["others.py"].splitlines()
    assert summary.startswith("forward became one graph")
    assert counts.startswith("1 1 ")
    assert (tmp_path / bundle.split()[-1] / "manifest.json").exists()


@pytest.mark.slow
def test_the_readme_shows_what_capture_prints() -> None:
    shown = re.search(
        r"^\$ torchrepro capture (\S+) --dynamo\n(.*?)^\.\.\.$",
        (DOCS.parent / "README.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert shown is not None
    finished = subprocess.run(
        [sys.executable, "-m", "torchrepro", "capture", shown[1], "--dynamo"],
        cwd=DOCS.parent,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith(shown[2])


def _indented(block: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in block.splitlines())
