"""Run the real command line, as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CASES = Path(__file__).resolve().parent.parent / "cases" / "real"


def torchrepro(
    *words: object, cwd: Path | None = None, timeout: float = 280, **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchrepro", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "80", **environ},
        timeout=timeout,
    )


def as_strangers(bundle: Path | str) -> Path:
    """Make a bundle a stranger's: without its signature nobody's word stands for it."""
    (Path(bundle) / "provenance.json").unlink(missing_ok=True)
    return Path(bundle)


def answer(finished: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The one JSON object on standard output."""
    lines = finished.stdout.strip().splitlines()
    assert len(lines) == 1, f"not exactly one line: {finished.stdout!r} {finished.stderr!r}"
    found: dict[str, Any] = json.loads(lines[0])
    return found
