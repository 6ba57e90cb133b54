"""What the tool costs on a GPU, each row against its yardstick in the same run: for docs/benchmarks.md.

    python -m benchmarks.gpu --parts watch,search --blocks 12

`watch`: a call of a small compiled MLP at each level. `search`: a transformer in training with inductor's own
injected `relu` bug, caught and minified, against one compile of the healthy program. The judge's rows are
those of `python -m benchmarks.compare --device cuda`, false alarms those of `benchmarks.false_alarms`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.minify.cases import HERE

PROGRAM = """\
import sys
import torch
import torch._inductor.config as config

class Block(torch.nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.attention = torch.nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(x)))

bug, blocks = sys.argv[1], int(sys.argv[2])
config.triton.inject_relu_bug_TESTING_ONLY = None if bug == "none" else bug
torch.manual_seed(0)
model = torch.compile(torch.nn.Sequential(*(Block() for _ in range(blocks))).cuda())
for _ in range(2):
    model(torch.randn(4, 64, 256, device="cuda")).sum().backward()
torch.cuda.synchronize()
"""


def watch() -> None:
    """Print the milliseconds of a call of a small MLP, unwatched and at levels 2 and 3."""
    import torchrepro

    for level in (0, 2, 3):
        torch.compiler.reset()
        layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
        with tempfile.TemporaryDirectory() as out, torch.no_grad():
            session = torchrepro.enable(level=level, out=out) if level else None
            model = torch.compile(torch.nn.Sequential(*layers).cuda())
            x = torch.randn(16, 64, device="cuda")
            for _ in range(20):
                model(x)
            times = []
            for _ in range(200):
                torch.cuda.synchronize()
                began = time.perf_counter()
                model(x)
                torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
            if session is not None:
                torchrepro.disable(session)
        name = f"level {level}" if level else "unwatched"
        tell(part="watch", way=name, milliseconds=round(1000 * statistics.median(times), 3))


def search(bugs: list[str], blocks: int) -> None:
    """Print the seconds from a failure to its verified script and to its culprit, and of one compile."""
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch, "program.py")
        program.write_text(PROGRAM)
        times = Path(scratch, "times")
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE / "counting"), *sys.path])}

        def run(*words: str, **more: str) -> float:
            began = time.perf_counter()
            cache = tempfile.mkdtemp(dir=scratch)
            subprocess.run(
                [sys.executable, *words],
                env={**environ, "TORCHINDUCTOR_CACHE_DIR": cache, **more},
                cwd=scratch,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=False,
            )
            return time.perf_counter() - began

        run(str(program), "none", str(blocks), COMPILES_TIMED=str(times))
        one = sum(map(float, times.read_text().split()))
        tell(part="search", what=f"one compile, {blocks} blocks, forward and backward", seconds=round(one, 1))
        for bug in bugs:
            out = Path(scratch, f"out-{bug}")
            level = "4" if bug == "accuracy" else "3"
            watched = ("-m", "torchrepro", "run", "--level", level, "--minify", "--no-explain", "--locate")
            whole = run(*watched, "--out", str(out), str(program), bug, str(blocks))
            results = sorted(out.glob("*.minified/result.json"))
            found = json.loads(results[0].read_text()) if results else {}
            places = sorted(out.glob("*/located/result.json"))
            located = json.loads(places[0].read_text()) if places else {}
            tell(
                part="search",
                what=bug,
                program_and_searches=round(whole, 1),
                ops=f"{found.get('start_ops')} -> {found.get('ops')}",
                verified=found.get("reproduces"),
                script_seconds=found.get("verified_after"),
                script_against_compile=round(found["verified_after"] / one, 2) if found else None,
                culprit=(located.get("op") or {}).get("op"),
                locate_seconds=located.get("seconds"),
                locate_against_compile=round(located["seconds"] / one, 2) if located else None,
            )


def tell(**row: object) -> None:
    print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", default="watch,search", help="watch, search, with commas")
    parser.add_argument(
        "--bugs", default="compile_error,accuracy,runtime_error", help="injected, with commas"
    )
    parser.add_argument("--blocks", type=int, default=12, help="of the transformer")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    if "watch" in options.parts:
        watch()
    if "search" in options.parts:
        search(options.bugs.split(","), options.blocks)


if __name__ == "__main__":
    main()
