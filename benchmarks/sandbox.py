"""What the sandbox costs: `python -m benchmarks.sandbox [--rounds 3] [BUNDLE...]`.

Checks each bundle without a sandbox (`--trust bundle`) and in each kind that this machine has, by turns, and
prints medians, the ratio and whether the verdict is the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

_BUNDLES = Path(__file__).parents[1] / "tests" / "goldens" / "bundles"
_KINDS = ("none", "namespaces", "landlock")


def _checked(bundle: Path, kind: str) -> tuple[float, str]:
    trust = ["--trust", "bundle"] if kind == "none" else []
    environ = os.environ | ({} if kind == "none" else {"TORCHREPRO_SANDBOX": kind})
    began = time.perf_counter()
    words = [sys.executable, "-m", "torchrepro", "check", str(bundle), "--json", *trust]
    ended = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    answer = json.loads(ended.stdout)
    return time.perf_counter() - began, answer.get("signature") or answer["error"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundles", nargs="*", type=Path, default=[_BUNDLES / "191499.zip"])
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    for bundle in chosen.bundles:
        _checked(bundle, "namespaces")  # makes the warm cache
        runs: dict[str, list[tuple[float, str]]] = {kind: [] for kind in _KINDS}
        for _ in range(chosen.rounds):
            for kind in _KINDS:
                runs[kind].append(_checked(bundle, kind))
        seconds = {kind: statistics.median(took for took, _ in found) for kind, found in runs.items()}
        same = len({said for found in runs.values() for _, said in found}) == 1
        for kind in _KINDS:
            ratio = seconds[kind] / seconds["none"]
            print(f"{bundle.name:16} {kind:12} {seconds[kind]:6.1f} s  ratio {ratio:.2f}", flush=True)
        print(f"{bundle.name:16} the verdict is {'the same' if same else 'NOT THE SAME'}")


if __name__ == "__main__":
    main()
