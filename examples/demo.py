"""The main job, end to end: a program with a silent bug is run watched, and what was caught is minified."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OUT = Path(".cache", "demo")
PYTHON, TORCHREPRO = (sys.executable,), (sys.executable, "-m", "torchrepro")


def shown(program: tuple[str, ...], *words: object) -> int:
    """Print a command as a user would type it, and run it."""
    name = "torchrepro" if program is TORCHREPRO else "python"
    print(f"\n$ {' '.join(map(str, (name, *words)))}", flush=True)
    return subprocess.run([*program, *map(str, words)], cwd=ROOT).returncode


def main() -> int:
    began = time.monotonic()
    shutil.rmtree(ROOT / OUT, ignore_errors=True)
    print("A program labels images with a compiled model of 300 operations. Nothing raises.")
    shown(TORCHREPRO, "run", "--level", 4, "--out", OUT / "caught", "examples/label_images.py")
    bundles = _read("caught/summary.json").get("bundles", [])
    if not bundles:
        print("\nThis torch computes it right: the bug of the demo (torch 2.13.0, CPU) is not there.")
        return 0

    bundle = os.path.relpath(bundles[0]["path"], ROOT)
    code = shown(TORCHREPRO, "minify", bundle, "--out", OUT / "minified")
    found = _read("minified/result.json")
    if code != 0 or not found:
        return code or 1

    script = Path(os.path.relpath(found["script"], ROOT))
    if shown(PYTHON, script) == 0:
        print(f"\n{script} does not fail: that is a bug of torchrepro, please report it with the file.")
        return 1
    cost = f"{found['queries']} queries, {time.monotonic() - began:.0f} s for all of the above"
    print(f"\nFrom {found['start_ops']} operations to {found['ops']}: {cost}. The script:\n{script}")
    return 0


def _read(name: str) -> dict[str, Any]:
    path = ROOT / OUT / name
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


if __name__ == "__main__":
    sys.exit(main())
