"""Accept a large leaf after one quick pass over it.

As in `batch.py`, a leaf is accepted only if it keeps the floor of every limit of the rule, with room for the
rounding of the pass itself. Everything else is for the rule to judge. On a CPU half types are measured in
float32, which holds them exactly and is half as many bytes; other dtypes gain nothing there.

GPUs read all three tensors once, by a Triton kernel (`fused_kernel.py`) that writes nothing but a few sums.
Triton alone compiles it, never the compiler under test. Where it cannot be used, the caller measures with
torch's own operations.
"""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

import torch

from torchrepro.judge.batch import ROOM, SmallLeaf, is_granted
from torchrepro.judge.metrics import SAMPLE, SMALL, Walk, sample_positions
from torchrepro.judge.rule import BLIND_QUANTILE, CANCELLATION, QUANTILE, Rule
from torchrepro.nouns.verdict import LeafComparison

_BLOCK = 1 << 19
# Of float32: an error is off by 2**-23 of the truth, where the least that is granted is 2**-8 of it; a sum of
# squares of one block by 3 % at most.
_SINGLE_ROOM, _SINGLE_SUM_ROOM = 1.0 - 2.0**-10, 0.8

_STRETCH = 1 << 15
"""Elements that one program of the kernel reads."""
_TILE = 1024
CELLS = 6
_unusable: list[str] = []
"""Why the kernel failed, once it has."""
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def glance(leaf: SmallLeaf, rule: Rule) -> LeafComparison | None:
    """Return the comparison of a large leaf that certainly is the same; None where the rule has to decide."""
    path, ref, res, truth, limits = leaf
    if limits is None or not rule.asks_about_rounding or ref.numel() <= SMALL or ref.is_complex():
        return None
    target = ref if truth is None else truth
    walk = Walk.over([ref, res, target], _BLOCK)
    if not walk.flat:
        return None
    old, new, exact = (walk.arranged(tensor) for tensor in (ref, res, target))
    relative = limits.blind_element if truth is None else limits.element_floor
    room, sum_room, sizes = ROOM, ROOM, (1e-140, 1e140)
    table = errors_of(old, new, exact, relative * room)
    if table is None and truth is not None:
        room, sum_room, sizes = _SINGLE_ROOM, _SINGLE_SUM_ROOM, (1e-12, 1e12)
        table = _errors_in_single(old, new, exact, relative * room, walk)
    if table is None:
        return None

    margin = limits.blame_margin
    excess = torch.maximum(table[:, 3].amax() / margin, table[:, 4].amax()).div_(room).reshape(1)
    magnitude = exact[sample_positions(ref.numel(), SAMPLE).to(exact.device)].double().abs_()
    magnitude.masked_fill_(magnitude > limits.largest, 0.0)  # the rule leaves these out as well
    slack, quantile = (relative, BLIND_QUANTILE) if truth is None else (CANCELLATION * relative, QUANTILE)
    granted = is_granted(excess, magnitude.unsqueeze(0), slack, limits.smallest, quantile)
    found = torch.cat((table[:, :3].sum(0), table[:, 5].amax().reshape(1), granted.double())).tolist()
    *squares, max_abs, granted_too = found
    if not all(square < float("inf") for square in squares) or not granted_too:
        return None
    rms_truth, rmse_ref, rmse_res = ((square / ref.numel()) ** 0.5 for square in squares)
    floor = limits.blind_rms if truth is None else limits.rms_floor
    most = sum_room * (floor * rms_truth + limits.smallest)
    if not (sizes[0] < rms_truth < sizes[1] and max_abs < sizes[1]):
        return None
    if not (rmse_res <= most and rmse_ref <= margin * most):
        return None
    errors = (None, None) if truth is None else (rmse_ref, rmse_res)
    return LeafComparison(
        path=path, elements=ref.numel(), max_abs=max_abs, rmse_ref=errors[0], rmse_res=errors[1]
    )


def _errors_in_single(
    ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor, relative: float, walk: Walk
) -> torch.Tensor | None:
    """Return the table of `errors_of`, for half types on a CPU; None for all others."""
    halves = torch.float16, torch.bfloat16
    if ref.dtype not in halves or res.dtype not in halves:
        return None
    if any(tensor.device.type != "cpu" for tensor in (ref, res, truth)):
        return None
    table = torch.empty((len(walk.parts), CELLS), device="cpu")
    buffers = torch.empty((4, _BLOCK), device="cpu")
    for part, row in zip(walk.parts, table, strict=True):
        numbers = part[0].stop - part[0].start
        sides, exact, change = buffers[:2, :numbers], buffers[2, :numbers], buffers[3, :numbers]
        for buffer, tensor in ((sides[0], ref), (sides[1], res), (exact, truth)):
            buffer.copy_(tensor[part])
        torch.amax(torch.sub(sides[1], sides[0], out=change).abs_(), 0, out=row[5])
        torch.dot(exact, exact, out=row[0])
        for number, error in enumerate(sides.sub_(exact)):
            torch.dot(error, error, out=row[1 + number])
        torch.amax(sides.abs_().sub_(exact.abs_(), alpha=relative), 1, out=row[3:5])
    return table.double()


def errors_of(
    ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor, relative: float
) -> torch.Tensor | None:
    """Return rows of sums and maxima over contiguous tensors; None where the kernel cannot be used.

    The columns: squares of the truth, of eager's and the compiled side's errors; the largest
    `|error| - relative * |truth|` of both; the largest difference between both. A NaN or an infinity in a
    tensor makes a sum of its row not finite.
    """
    tensors = ref, res, truth
    if ref.device.type != "cuda" or any(tensor.device != ref.device for tensor in tensors):
        return None
    if any(
        tensor.dtype not in _DTYPES or not tensor.is_contiguous() or tensor.is_neg() for tensor in tensors
    ):
        return None
    if _unusable or kernel() is None:
        return None
    try:
        with torch.cuda.device(ref.device):
            return launch(kernel(), ref, res, truth, relative)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton raises many types: no compiler, no driver, an unknown GPU
        warnings.warn(
            f"the comparison uses torch's own operations, which is slower: {type(error).__name__}: {error}",
            stacklevel=2,
        )
        _unusable.append(type(error).__name__)
        return None


def launch(
    function: Any, ref: torch.Tensor, res: torch.Tensor, truth: torch.Tensor, relative: float
) -> torch.Tensor:
    """Run the kernel over all elements, and return its table."""
    count = ref.numel()
    programs = -(-count // _STRETCH)
    table = torch.empty((programs, CELLS), dtype=torch.float64, device=ref.device)
    # Triton would pass a Python number as float32.
    factor = torch.full((1,), relative, dtype=torch.float64, device=ref.device)
    function[(programs,)](ref, res, truth, table, factor, count, STRETCH=_STRETCH, TILE=_TILE, num_warps=8)
    return table


@functools.cache
def kernel() -> Any:
    """Return the compiled-on-use kernel; None without Triton, and under Triton's interpreter."""
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return None
    try:
        from torchrepro.judge.fused_kernel import measure_errors
    except ImportError:
        return None
    return measure_errors
