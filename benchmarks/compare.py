"""How fast and how lean `same` is, against copying the same tensors and against torch's own `same`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchrepro.judge.compare import same

_ROUNDS = 3
_THREADS = 2
_MIB = 1 << 20


def _tensors(elements: int, dtype: torch.dtype, *, strided: bool) -> tuple[torch.Tensor, ...]:
    """Eager, compiled and the truth: a healthy pair whose errors are about an ulp."""
    generator = torch.Generator().manual_seed(0)
    shape = (elements // 1024, 1024)
    truth = torch.randn(shape, dtype=torch.float64, generator=generator)
    ref = truth.to(dtype)
    noise = torch.randn(shape, dtype=torch.float32, generator=generator)
    res = noise.mul_(torch.finfo(dtype).eps / 4).add_(1.0).mul(truth).to(dtype)
    return (ref.t(), res.t(), truth.t()) if strided else (ref, res, truth)


_CASES: tuple[tuple[str, int, torch.dtype, bool, bool], ...] = (
    # name, elements, dtype, with the truth, transposed views
    ("64 Mi float32, float64 reference", 1 << 26, torch.float32, True, False),
    ("64 Mi float32, no reference", 1 << 26, torch.float32, False, False),
    ("64 Mi bfloat16, float64 reference", 1 << 26, torch.bfloat16, True, False),
    ("16 Mi float32 permuted, float64 reference", 1 << 24, torch.float32, True, True),
    ("64 Ki float32, float64 reference", 1 << 16, torch.float32, True, False),
)


def rows() -> list[dict[str, Any]]:
    """One row a case: seconds of ours, of a plain copy and of torch's `same`, ratios and memory."""
    torch.set_num_threads(_THREADS)
    return [_row(number) for number in range(len(_CASES))]


def _row(number: int) -> dict[str, Any]:
    name, elements, dtype, with_truth, strided = _CASES[number]
    ref, res, truth = _tensors(elements, dtype, strided=strided)
    given = (ref, res, truth) if with_truth else (ref, res)
    targets = [torch.empty_like(tensor) for tensor in given]

    def copy() -> None:
        for target, tensor in zip(targets, given, strict=True):
            target.copy_(tensor)

    def ours() -> None:
        assert same(*given)

    def theirs() -> None:
        from torch._dynamo.utils import same as torch_same

        torch_same(*given)

    ours_s, copy_s, theirs_s = _interleaved(ours, copy, theirs)
    return {
        "name": name,
        "seconds": ours_s,
        "copy_seconds": copy_s,
        "of_copy_speed": copy_s / ours_s,
        "torch_same_seconds": theirs_s,
        "speedup": theirs_s / ours_s,
        "peak_extra_mib": _peak_extra_mib(number),
    }


def _interleaved(*functions: Callable[[], None]) -> list[float]:
    """The median of several rounds, in turn, so that a busy moment hits all alike."""
    taken: list[list[float]] = [[] for _ in functions]
    for round_number in range(_ROUNDS + 1):
        for times, function in zip(taken, functions, strict=True):
            start = time.perf_counter()
            function()
            if round_number:  # the first round warms up
                times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]


def _peak_extra_mib(number: int) -> float:
    """How far the resident set rises above the tensors themselves, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.compare", "--peak", str(number)]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _print_peak(number: int) -> None:
    torch.set_num_threads(_THREADS)
    _, elements, dtype, with_truth, strided = _CASES[number]
    warm = _tensors(1 << 12, dtype, strided=strided)
    same(*warm)  # libraries and thread pools are not memory of the comparison
    ref, res, truth = _tensors(elements, dtype, strided=strided)
    given = (ref, res, truth) if with_truth else (ref, res)
    before = _resident_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    same(*given)
    print((_resident_kib("VmHWM") - before) / 1024)


def _resident_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"same(eager, compiled, float64), CPU, {_THREADS} threads, median of {_ROUNDS}")
    for heading in ("case", "ours", "copy", "of copy speed", "torch's same", "faster", "extra memory"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows():
        table.add_row(
            row["name"],
            f"{row['seconds'] * 1e3:.1f} ms",
            f"{row['copy_seconds'] * 1e3:.1f} ms",
            f"{row['of_copy_speed']:.0%}",
            f"{row['torch_same_seconds'] * 1e3:.1f} ms",
            f"{row['speedup']:.1f}x",
            f"{row['peak_extra_mib']:.0f} MiB",
        )
    Console().print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        _print_peak(int(sys.argv[2]))
    else:
        main()
