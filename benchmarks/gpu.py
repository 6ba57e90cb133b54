"""What the tool costs on a GPU, each row against its yardstick in the same run: for docs/benchmarks.md.

    python -m benchmarks.gpu --parts watch,search,large --blocks 12 --billions 3

`watch`: a call of a small compiled MLP at each level. `search`: a transformer in training with inductor's own
injected `relu` bug, caught and minified, against one compile of the healthy program. `large`: a model in
bfloat16 that fills much of the device, without gradients, at level 4: peak memory and seconds against eager
(`--device cpu --billions 0.05` tries it without a GPU, by the resident set). The judge's rows are those of
`python -m benchmarks.compare --device cuda`, false alarms those of `benchmarks.false_alarms`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.compare import resident_kib
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


def search(bugs: list[str], blocks: int, limit: float) -> None:
    """Print the seconds from a failure to its verified script and to its culprit, and of one compile."""
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch, "program.py")
        program.write_text(PROGRAM)
        times, said = Path(scratch, "times"), Path(scratch, "said")
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE / "counting"), *sys.path])}

        def run(*words: str, **more: str) -> float:
            began = time.perf_counter()
            cache = tempfile.mkdtemp(dir=scratch)
            with said.open("w") as file:
                process = subprocess.Popen(
                    [sys.executable, *words],
                    env={**environ, "TORCHINDUCTOR_CACHE_DIR": cache, **more},
                    cwd=scratch,
                    stdout=subprocess.DEVNULL,
                    stderr=file,
                    start_new_session=True,
                )
            for seconds, number in ((limit, signal.SIGINT), (20.0, signal.SIGKILL)):
                try:
                    process.wait(seconds)
                    break
                except subprocess.TimeoutExpired:
                    # An interrupted search leaves what it has found, with its timeline.
                    tell(part="search", what=" ".join(words[-2:]), after=seconds, sent=number.name)
                    os.killpg(process.pid, number)
            process.wait()
            return time.perf_counter() - began

        run(str(program), "none", str(blocks), COMPILES_TIMED=str(times))
        one = sum(map(float, times.read_text().split()))
        tell(part="search", what=f"one compile, {blocks} blocks, forward and backward", seconds=round(one, 1))
        for bug in bugs:
            out = Path(scratch, f"out-{bug}")
            level = "4" if bug == "accuracy" else "3"
            watched = ("-m", "torchrepro", "run", "--level", level, "--minify", "--no-explain", "--locate")
            whole = run(*watched, "--out", str(out), str(program), bug, str(blocks))
            if not out.exists():
                raise SystemExit(f"the program was not watched: {said.read_text()[-2000:]}")
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
                way=(located.get("op") or {}).get("way"),
                notes=[*found.get("notes", ()), *located.get("notes", ())],
                locate_seconds=located.get("answered_after"),
                locate_seconds_with_evidence=located.get("seconds"),
                locate_stopped=located.get("stopped"),
                locate_against_compile=round(located["answered_after"] / one, 2) if located else None,
                minify_timeline=told(found),
                minify_passes={
                    row["name"]: [row["queries"], round(row["seconds"], 1)]
                    for row in found.get("passes", ())
                    if row["queries"]
                },
                locate_timeline=told(located),
            )


def told(found: dict[str, Any]) -> list[str]:
    """Return when each phase of a search began, with the candidates that had been run by then."""
    moments = found.get("timeline", ())
    return [f"{each['seconds']:.1f} s: {each['name']} ({each['queries']})" for each in moments]


class LargeBlock(torch.nn.Module):
    """A block of a decoder, with about `12 * width ** 2` parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm, self.second_norm = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, 64)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second_norm(x))))


def large(billions: float, device: str) -> None:
    """Print seconds and peak memory of a large bfloat16 model: eager, compiled, and checked at level 4."""
    import torchrepro

    width = 3072 if billions >= 1 else 512
    blocks = max(1, round(billions * 1e9 / (12 * width**2)))
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = torch.nn.Sequential(*(LargeBlock(width).bfloat16() for _ in range(blocks)))
        x = torch.randn(1, 512, width, dtype=torch.bfloat16)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    shown = {"part": "large", "billions": round(parameters / 1e9, 2), "blocks": blocks}

    def measure(function: Callable[[], Any]) -> tuple[float, float]:
        """Return seconds and the peak memory in GiB, the model included."""
        _synchronise(device)
        _reset_peak(device)
        began = time.perf_counter()
        function()
        _synchronise(device)
        return time.perf_counter() - began, _peak_gib(device)

    def several(function: Callable[[], Any]) -> tuple[float, float]:
        rows = [measure(function) for _ in range(3)]
        return statistics.median(seconds for seconds, _ in rows), max(peak for _, peak in rows)

    with torch.no_grad(), torch.compiler.config.patch(force_disable_caches=True):
        model(x)
        eager, eager_peak = several(lambda: model(x))

        def row(what: str, measured: tuple[float, float], **more: object) -> None:
            seconds, peak = measured
            tell(
                **shown,
                what=what,
                seconds=round(seconds, 4),
                seconds_against_eager=round(seconds / eager, 2),
                peak_gib=round(peak, 2),
                peak_against_eager=round(peak / eager_peak, 2),
                **more,
            )

        row("eager", (eager, eager_peak))
        compiled = torch.compile(model)
        first = measure(lambda: compiled(x))
        row("compiled, first call", first)
        row("compiled, a later call", several(lambda: compiled(x)))
        torch.compiler.reset()
        with tempfile.TemporaryDirectory() as out:
            session = torchrepro.enable(level=4, out=out)
            compiled = torch.compile(model)
            watched = measure(lambda: compiled(x))
            row("level 4, first call", watched, seconds_against_first_call=round(watched[0] / first[0], 2))
            row("level 4, second call", measure(lambda: compiled(x)))
            row("level 4, a later call", several(lambda: compiled(x)))
            tell(
                **shown,
                what="all checks",
                seconds=round(session.checking_seconds, 2),
                bundles=len(session.kept),
            )
            torchrepro.disable(session)


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _reset_peak(device: str) -> None:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")


def _peak_gib(device: str) -> float:
    used = torch.cuda.max_memory_allocated() if device == "cuda" else resident_kib("VmHWM") << 10
    return used / (1 << 30)


def tell(**row: object) -> None:
    print(json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--parts", default="watch,search,large", help="watch, search, large, with commas")
    parser.add_argument(
        "--bugs", default="compile_error,accuracy,runtime_error", help="injected, with commas"
    )
    parser.add_argument("--blocks", type=int, default=12, help="of the transformer in `search`")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each program in `search`")
    parser.add_argument("--billions", type=float, default=3.0, help="parameters of the model in `large`")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: `large` alone")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("needs a CUDA device")
    if options.device == "cpu" and options.parts != "large":
        raise SystemExit("--device cpu is for --parts large alone")
    if "watch" in options.parts:
        watch()
    if "search" in options.parts:
        search(options.bugs.split(","), options.blocks, options.limit)
    if "large" in options.parts:
        large(options.billions, options.device)


if __name__ == "__main__":
    main()
