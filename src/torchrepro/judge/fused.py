"""One pass over eager, compiled and float64 on a GPU, by a Triton kernel: nothing is written but a few sums.

It is compiled by Triton alone, never by the compiler under test. Without Triton, or where it fails,
`errors_of` gives None and the caller measures with torch's own operations.
"""

from __future__ import annotations

import functools
import os
import warnings
from typing import Any

import torch

_STRETCH = 1 << 15
"""Elements that one program of the kernel reads."""
_TILE = 1024
CELLS = 6
_unusable: list[str] = []
"""Why the kernel failed, once it has."""
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
