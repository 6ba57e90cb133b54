"""The main job, end to end: compare a model with its compiled self, keep the proof, run it again."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
TORCHREPRO = [sys.executable, "-m", "torchrepro"]


def shown(command: list[str]) -> int:
    words = [Path(word).name if word == sys.executable else word for word in command]
    print(f"\n$ {' '.join(words).replace('python -m torchrepro', 'torchrepro')}", flush=True)
    return subprocess.run(command).returncode


def main() -> int:
    model = f"{HERE / 'quantised_cnn.py'}:build"
    with tempfile.TemporaryDirectory(prefix="torchrepro-demo-") as directory:
        code = shown([*TORCHREPRO, "compare", model, "--save", directory])
        bundles = sorted(Path(directory).iterdir())
        if code == 0:
            print("\nThis torch computes it right: the bug of the demo (torch 2.13.0, CPU) is not there.")
            return 0
        if not bundles:
            return code
        shown([*TORCHREPRO, "show", str(bundles[0])])
        shown([*TORCHREPRO, "check", str(bundles[0])])
        script = shown([sys.executable, str(bundles[0] / "repro.py")])
        expected = json.loads((bundles[0] / "manifest.json").read_text())["expected"]["kind"]
        print(f"\nFound a {expected}; its standalone script exits with {script}.")
        return 0 if script == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
