"""Run a bundle for its report: judge it, and map where in its tensors the errors are.

A map is a histogram and at most 64 by 64 cells, made in the process that has the values: that returns only a
few thousand numbers, however large the tensor is.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import torch

from torchrepro.execute.generate_code import reporting_code
from torchrepro.execute.judge_repro import judge_repro, load_for_job
from torchrepro.execute.torch_comparisons import measurements, tensors_of
from torchrepro.judge.clone import is_plain
from torchrepro.judge.execute import Run
from torchrepro.judge.models import Judged, Phase
from torchrepro.nouns.environment import Environment
from torchrepro.nouns.verdict import Comparison, LeafComparison, as_data
from torchrepro.report.contents import ErrorMap

_TENSORS = 3
"""Maximum number of wrong tensors in a report; the verdict names all."""


def measure(payload: dict[str, Any], phase: Phase) -> Any:
    """Judge a bundle, map the errors of its worst tensors, and ask torch's own comparisons about them.

    Return `{"verdict": ..., "maps": [...], "answers": {...}}`; the generated code is sent on the way.
    """
    repro = load_for_job(payload, phase)
    judged = Judged()
    with reporting_code(repro, phase):
        verdict = judge_repro(repro, fp64=payload.get("fp64", True), phase=phase, judged=judged)
    # Not `if verdict.comparison`: a comparison is true if nothing differs.
    maps = _maps(verdict.comparison, judged.runs) if verdict.comparison is not None else []
    sides = {side: tensors_of(run) for side, run in judged.runs.items()}
    answers = measurements(repro, verdict, sides, phase)
    return {
        "verdict": msgspec.to_builtins(verdict.with_notes(*repro.notes)),
        "maps": maps,
        "answers": answers,
    }


def environment_here(payload: dict[str, Any], phase: Phase) -> Any:
    """Return the versions, the hardware and the relevant environment variables of this machine."""
    if torch.cuda.is_available():
        torch.cuda.init()  # nothing is forked from here, and the names of the devices are needed
    settings = {"threads": torch.get_num_threads(), **payload["environ"]}
    return {"environment": msgspec.to_builtins(Environment.capture()), "settings": settings}


def _maps(comparison: Comparison, runs: Mapping[str, Run]) -> list[Any]:
    """Return the maps of the worst tensors that differ, as plain data."""
    sides = {side: tensors_of(run) for side, run in runs.items()}
    found: list[Any] = []
    for leaf in sorted(comparison.differing, key=_badness):
        tensors = [sides.get(side, {}).get(leaf.path) for side in ("eager", "compiled", "truth")]
        eager, compiled, truth = tensors
        if eager is None or compiled is None or len(found) == _TENSORS:
            continue
        one = error_map(leaf.path, eager, compiled, truth)
        if one is not None:
            found.append(as_data(dataclasses.asdict(one)))
    return found


def _badness(leaf: LeafComparison) -> tuple[float, float]:
    """Return a sort key: the share of wrong elements, largest first."""
    return -leaf.mismatched / max(leaf.elements, 1), -leaf.severity


CELLS = 64
"""Maximum rows and columns of a heat map."""
_BINS = 40
"""Maximum bins of a histogram."""
_CHUNK = 1 << 22
"""Elements at a time: then even the errors of a tensor of a gigabyte need 32 MB."""
_LOWEST, _HIGHEST = -330, 310
"""Decimal exponents of float64, subnormal numbers included."""
_FINE = 4
"""Bins to a power of ten before they are made coarser."""


def error_map(
    path: str, eager: torch.Tensor, compiled: torch.Tensor, truth: torch.Tensor | None
) -> ErrorMap | None:
    """Map how far both are from the truth, element by element; None if elements cannot be compared.

    Without a truth it is the compiled result's distance to eager's.
    """
    target = eager if truth is None or truth.shape != eager.shape else truth
    comparable = eager.shape == compiled.shape and all(map(is_plain, (eager, compiled, target)))
    if not comparable or compiled.numel() == 0:
        return None
    layout = _Layout(tuple(compiled.shape))
    cells = torch.full((layout.rows * layout.columns,), -1.0, dtype=torch.float64)
    wrong = torch.zeros((_HIGHEST - _LOWEST) * _FINE, dtype=torch.int64)
    noise = torch.zeros_like(wrong)
    non_finite = 0
    for first, errors in _errors(compiled, target):
        _count(wrong, errors)
        non_finite += int(errors.isinf().sum())
        cells.scatter_reduce_(0, layout.cells_of(first, len(errors)), errors, "amax")
    if target is not eager:
        for _, errors in _errors(eager, target):
            _count(noise, errors)
    edges, counts = _histogram(noise, wrong)
    return ErrorMap(
        path=path,
        shape=tuple(compiled.shape),
        against="eager" if target is eager else "float64",
        edges=edges,
        eager=counts[0] if target is not eager else (),
        compiled=counts[1],
        rows=tuple(
            tuple(None if cell < 0 else cell for cell in row)
            for row in cells.view(layout.rows, layout.columns).tolist()
        ),
        dims=layout.names,
        non_finite=non_finite,
    )


def _errors(tensor: torch.Tensor, target: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (index of the first element, errors of the elements) for each chunk.

    Equal values have error 0, infinities and NaN included. If only one of the two is finite, it is infinite.
    """
    flat, true = tensor.detach().reshape(-1), target.detach().reshape(-1)
    for first in range(0, len(flat), _CHUNK):
        value, wanted = _wide(flat[first : first + _CHUNK]), _wide(true[first : first + _CHUNK])
        difference = (value - wanted).abs()
        same = (value == wanted) | (value.isnan() & wanted.isnan())
        errors = torch.where(same, 0.0, difference)
        yield first, torch.where(errors.isfinite(), errors, math.inf)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Convert to float64 on the CPU; integers beyond 2**53 lose digits that no plot shows."""
    moved = tensor.cpu().resolve_conj().resolve_neg()
    return moved.to(torch.complex128 if moved.is_complex() else torch.float64)


def _count(bins: torch.Tensor, errors: torch.Tensor) -> None:
    """Add finite non-zero errors to bins of a quarter of a power of ten."""
    there = errors[(errors > 0) & errors.isfinite()]
    number = ((there.log10() - _LOWEST) * _FINE).floor().long().clamp_(0, len(bins) - 1)
    bins += torch.bincount(number, minlength=len(bins))


def _histogram(
    eager: torch.Tensor, compiled: torch.Tensor
) -> tuple[tuple[float, ...], tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return edges and counts of the range that is not empty, in at most `_BINS` bins."""
    filled = (eager + compiled).nonzero().reshape(-1).tolist()
    if not filled:
        return (), ((), ())
    first, last = filled[0], filled[-1]
    width = math.ceil((last - first + 1) / _BINS)
    starts = range(first, last + 1, width)
    edges = tuple(_LOWEST + number / _FINE for number in (*starts, starts[-1] + width))
    binned = [tuple(int(side[start : start + width].sum()) for start in starts) for side in (eager, compiled)]
    return edges, (binned[0], binned[1])


class _Layout:
    """Maps elements to cells of the heat map, and labels its rows and columns."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        if len(shape) > 1:
            # As close to a square as possible; the last split wins a tie.
            halves = {cut: (math.prod(shape[:cut]), math.prod(shape[cut:])) for cut in range(1, len(shape))}
            crooked = {cut: abs(math.log(above / below)) for cut, (above, below) in halves.items()}
            split = min(halves, key=lambda cut: (round(crooked[cut], 9), -cut))
            height, self._width = halves[split]
            self.names = (_dims(shape, 0, split), _dims(shape, split, len(shape)))
        else:
            elements = math.prod(shape)
            # One dimension is wrapped into several rows if it is longer than a row.
            self._width = elements if elements <= CELLS else max(CELLS, math.ceil(math.sqrt(elements)))
            height = math.ceil(elements / self._width)
            folded = f"dim 0 ({elements}), {self._width} elements a row" if height > 1 else ""
            self.names = (folded, "" if height > 1 else _dims(shape, 0, len(shape)))
        self._height = height
        self.rows, self.columns = min(height, CELLS), min(self._width, CELLS)

    def cells_of(self, first: int, count: int) -> torch.Tensor:
        number = torch.arange(first, first + count)
        row, column = number // self._width, number % self._width
        return (row * self.rows // self._height) * self.columns + column * self.columns // self._width


def _dims(shape: tuple[int, ...], start: int, end: int) -> str:
    if start == end:
        return ""
    count = math.prod(shape[start:end])
    return f"dim {start} ({count})" if end - start == 1 else f"dims {start} to {end - 1} ({count})"
