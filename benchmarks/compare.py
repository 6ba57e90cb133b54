"""How fast and how lean `same` is, against copying the same tensors and against torch's own `same`."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchrepro.judge.compare import same

_ROUNDS = 3
_THREADS = 2


class Case(NamedTuple):
    """A comparison of several tensors with `elements` elements each."""

    name: str
    elements: int
    dtype: torch.dtype
    with_truth: bool = True
    transposed: bool = False
    tensors: int = 1


_MANY = (
    Case("2,000 tensors of 1,024 float32, float64 reference", 1 << 10, torch.float32, tensors=2000),
    Case(
        "2,000 tensors of 1,024 float32, no reference", 1 << 10, torch.float32, with_truth=False, tensors=2000
    ),
    Case("2,000 tensors of 1,024 bfloat16, float64 reference", 1 << 10, torch.bfloat16, tensors=2000),
)
_CASES = {
    "cpu": (
        Case("64 Mi float32, float64 reference", 1 << 26, torch.float32),
        Case("64 Mi float32, no reference", 1 << 26, torch.float32, with_truth=False),
        Case("64 Mi bfloat16, float64 reference", 1 << 26, torch.bfloat16),
        Case("16 Mi float32 permuted, float64 reference", 1 << 24, torch.float32, transposed=True),
        Case("64 Ki float32, float64 reference", 1 << 16, torch.float32),
        *_MANY,
    ),
    "cuda": (
        Case("1 GiB float32, float64 reference", 1 << 28, torch.float32),
        Case("1 GiB float32, no reference", 1 << 28, torch.float32, with_truth=False),
        Case("1 GiB bfloat16, float64 reference", 1 << 29, torch.bfloat16),
        *_MANY,
    ),
}


def _tensors(case: Case, device: str, elements: int | None = None) -> tuple[Any, ...]:
    """Eager, compiled and the truth: healthy pairs whose errors are about an ulp."""
    generator = torch.Generator(device).manual_seed(0)
    shape = ((elements or case.elements) // 1024, 1024)
    made: tuple[list[torch.Tensor], ...] = ([], [], [])
    for _ in range(case.tensors):
        truth = torch.randn(shape, dtype=torch.float64, generator=generator, device=device)
        res = torch.randn(shape, dtype=torch.float32, generator=generator, device=device)
        res = res.mul_(torch.finfo(case.dtype).eps / 4).add_(1.0).mul(truth).to(case.dtype)
        for values, tensor in zip(made, (truth.to(case.dtype), res, truth), strict=True):
            values.append(tensor.t() if case.transposed else tensor)
    return made if case.with_truth else made[:2]


def rows(device: str, threads: int) -> Iterator[dict[str, Any]]:
    """One row a case: seconds of ours, of a plain copy and of torch's `same`, ratios and memory."""
    torch.set_num_threads(threads)
    for number in range(len(_CASES[device])):
        yield _row(number, device)


def _row(number: int, device: str) -> dict[str, Any]:
    from torch._dynamo.utils import same as torch_same

    case = _CASES[device][number]
    given = _tensors(case, device)
    targets = [[torch.empty_like(tensor) for tensor in values] for values in given]

    def copy() -> None:
        for values, others in zip(targets, given, strict=True):
            for target, tensor in zip(values, others, strict=True):
                target.copy_(tensor)

    def ours() -> None:
        assert same(*given)

    def theirs() -> None:
        torch_same(*given)

    ours_s, copy_s, theirs_s = _interleaved(device, ours, copy, theirs)
    return {
        "name": case.name,
        "seconds": ours_s,
        "copy_seconds": copy_s,
        "of_copy_speed": copy_s / ours_s,
        "torch_same_seconds": theirs_s,
        "speedup": theirs_s / ours_s,
        "peak_extra_mib": _peak_extra_mib(number) if device == "cpu" else _peak_on_device(ours),
    }


def _interleaved(device: str, *functions: Callable[[], None]) -> list[float]:
    """The median of several rounds, in turn, so that a busy moment hits all alike."""
    taken: list[list[float]] = [[] for _ in functions]
    for round_number in range(_ROUNDS + 1):
        for times, function in zip(taken, functions, strict=True):
            start = time.perf_counter()
            function()
            if device != "cpu":
                torch.accelerator.synchronize()
            if round_number:  # the first round warms up
                times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in taken]


def _peak_on_device(function: Callable[[], None]) -> float:
    """How far the memory in use on the GPU rises."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    return (torch.cuda.max_memory_allocated() - before) / (1 << 20)


def _peak_extra_mib(number: int) -> float:
    """How far the resident set rises above the tensors themselves, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.compare", "--peak", str(number)]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _print_peak(number: int) -> None:
    torch.set_num_threads(_THREADS)
    case = _CASES["cpu"][number]
    same(*_tensors(case, "cpu", 1 << 12))  # libraries and thread pools are not memory of the comparison
    given = _tensors(case, "cpu")
    before = resident_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    same(*given)
    print((resident_kib("VmHWM") - before) / 1024)


def resident_kib(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


def main(device: str = "cpu", threads: int = _THREADS) -> None:
    from rich.console import Console
    from rich.table import Table

    where = f"CPU, {threads} threads" if device == "cpu" else torch.cuda.get_device_name()
    table = Table(title=f"same(eager, compiled, float64), {where}, median of {_ROUNDS}")
    for heading in ("case", "ours", "copy", "of copy speed", "torch's same", "faster", "extra memory"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows(device, threads):
        table.add_row(
            row["name"],
            f"{row['seconds'] * 1e3:.1f} ms",
            f"{row['copy_seconds'] * 1e3:.1f} ms",
            f"{row['of_copy_speed']:.0%}",
            f"{row['torch_same_seconds'] * 1e3:.1f} ms",
            f"{row['speedup']:.2g}x",
            f"{row['peak_extra_mib']:.0f} MiB",
        )
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=sorted(_CASES), default="cpu")
    parser.add_argument("--threads", type=int, default=_THREADS, help="1 on a busy machine")
    parser.add_argument(
        "--peak", type=int, metavar="NUMBER", help="print the extra memory of one case, in MiB"
    )
    chosen = parser.parse_args()
    if chosen.peak is None:
        main(chosen.device, chosen.threads)
    else:
        _print_peak(chosen.peak)
