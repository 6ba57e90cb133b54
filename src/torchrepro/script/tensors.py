"""An input of a repro as a line of code that makes the very same value: bits, layout, gradients.

Lines are guesses, the one that a person would choose first. A line counts only once it has been evaluated and
compared, so a wrong one costs microseconds. What no line makes goes to a file next to the script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.judge.tensors import unequal
from torchrepro.script.tensor_values import Elements, Line, sizes_text
from torchrepro.torch_api.names import NEG_VIEW, ZERO_TENSOR
from torchrepro.torch_api.tensors import is_fake, is_zero_tensor, neg_view, plain_torch

_ONE_CALL = re.compile(r"torch\.\w+\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
"""A call of a factory with nothing after it: `requires_grad` can go there."""
_DENSE_LIMIT = 1 << 24
_ALIGNMENT = 64
"""Bytes: the widest vector of a CPU. Compilers ask for no more."""


@dataclass(frozen=True)
class Surroundings:
    """What a line depends on in addition to its own text."""

    default_dtype: torch.dtype = torch.float32
    random_state: torch.Tensor | None = None
    """Where the draws of earlier lines have left the generator; None where nothing was drawn yet."""


def line_for(tensor: torch.Tensor, around: Surroundings | None = None) -> Line | None:
    """Return a line that makes this tensor; None where only a file can hold it."""
    around = around or Surroundings()
    if is_fake(tensor) or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    with plain_torch():
        return next((line for line in _guesses(tensor, around) if _makes(line, tensor, around)), None)


def after_drawing(line: Line, around: Surroundings) -> Surroundings:
    """Return the surroundings of the next line."""
    with plain_torch():
        return replace(around, random_state=_evaluated(line, around)[1])


def _guesses(tensor: torch.Tensor, around: Surroundings) -> Iterator[Line]:
    """Yield candidate lines. Checked on torch 2.11 to 2.15 (`_efficientzerotensor`, `_neg_view`)."""
    default = around.default_dtype
    if is_zero_tensor(tensor):
        typed = "" if tensor.dtype is default else f", dtype={tensor.dtype}"
        yield Line(f"{ZERO_TENSOR}({tuple(tensor.shape)}{typed})")
        return
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return
    for line in _without_gradients(tensor.detach(), default):
        if not tensor.requires_grad:
            yield line
            continue
        if _ONE_CALL.fullmatch(line.text):
            yield replace(line, text=f"{line.text[:-1]}, requires_grad=True)")
        yield replace(line, text=f"{line.text}.requires_grad_()")


# How the elements are laid out.


def _without_gradients(tensor: torch.Tensor, default: torch.dtype) -> Iterator[Line]:
    if tensor.is_conj():
        yield from _with(".conj()", _without_gradients(tensor.conj(), default))
        return
    if tensor.is_neg():
        for line in _without_gradients(neg_view(tensor), default):
            yield replace(line, text=f"{NEG_VIEW}({line.text})")
        return
    if tensor.numel() == 0:
        yield from Elements(tensor, default).lines()
        typed = Elements(tensor, default).typed(default)
        yield Line(f"torch.empty_strided({tuple(tensor.shape)}, {tuple(tensor.stride())}{typed})")
        return
    # The strides that factories give a tensor of this size; those of a dimension of size 1 may differ.
    if tensor.stride() == torch.empty(tensor.shape, device="meta").stride() and not kept_offset(tensor):
        yield from Elements(tensor, default).lines()
        return
    yield from _rearranged(tensor, default)
    yield from _within_a_larger(tensor, default)


def _rearranged(tensor: torch.Tensor, default: torch.dtype) -> Iterator[Line]:
    """Yield lines for a dense tensor with permuted dimensions, or dimensions expanded without memory."""
    repeated = [dim for dim, step in enumerate(tensor.stride()) if step == 0 and tensor.shape[dim] > 1]
    if repeated:
        kept = tensor
        for dim in repeated:
            kept = kept.narrow(dim, 0, 1)
        while kept.dim() > 1 and kept.shape[0] == 1 and 0 in repeated:
            kept, repeated = kept[0], [dim - 1 for dim in repeated]
        yield from _with(f".expand({sizes_text(tensor.shape)})", Elements(kept, default).lines())
        return
    order = sorted(range(tensor.dim()), key=lambda dim: (-int(tensor.stride()[dim]), dim))
    ordered = tensor.permute(order)
    if not ordered.is_contiguous():
        return
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        yield from _with(".to(memory_format=torch.channels_last)", Elements(tensor, default).lines())
    back = [order.index(dim) for dim in range(tensor.dim())]
    moved = [dim for dim, place in enumerate(back) if dim != place]
    suffix = f".permute({sizes_text(back)})"
    if len(moved) == 2:
        suffix = ".t()" if tensor.dim() == 2 else f".transpose({sizes_text(moved)})"
    yield from _with(suffix, Elements(ordered, default).lines())


def _within_a_larger(tensor: torch.Tensor, default: torch.dtype) -> Iterator[Line]:
    """Yield lines for a view of a larger memory; the values between its elements are made up."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    offset = kept_offset(tensor)
    whole = offset + reach + 1
    if whole > _DENSE_LIMIT:
        return
    memory = torch.empty(whole, dtype=tensor.dtype, device=tensor.device)
    memory.copy_(tensor.reshape(-1)[:1].expand(whole))
    place = (tuple(tensor.shape), tuple(tensor.stride()), *([offset] if offset else []))
    memory.as_strided(tensor.shape, tensor.stride(), offset).copy_(tensor)
    yield from _with(f".as_strided({sizes_text(place)})", Elements(memory, default).lines())


def kept_offset(tensor: torch.Tensor) -> int:
    """Return the tensor's offset in its memory, if that changes its alignment; else 0."""
    offset = int(tensor.storage_offset())
    return offset if offset * tensor.dtype.itemsize % _ALIGNMENT else 0


def _with(suffix: str, lines: Iterator[Line]) -> Iterator[Line]:
    return (replace(line, text=line.text + suffix) for line in lines)


# Whether a line makes the tensor.


def _makes(line: Line, wanted: torch.Tensor, around: Surroundings) -> bool:
    """Return whether the line evaluates to exactly this tensor."""
    if line.drawn and line.seed is None and around.random_state is None:
        return False
    try:
        return same_tensor(_evaluated(line, around)[0], wanted)
    except (RuntimeError, TypeError, ValueError, OverflowError, NotImplementedError):
        return False  # a factory that does not support this dtype, a number that does not fit


def _evaluated(line: Line, around: Surroundings) -> tuple[Any, torch.Tensor]:
    """Return what a line makes and the generator's state after it; restore this process's own state."""
    dtype, state = torch.get_default_dtype(), torch.get_rng_state()
    try:
        torch.set_default_dtype(around.default_dtype)
        if line.seed is not None:
            torch.default_generator.manual_seed(line.seed)
        elif around.random_state is not None:
            torch.set_rng_state(around.random_state)
        with torch.enable_grad():
            return eval(line.text, {"torch": torch}), torch.get_rng_state()
    finally:
        torch.set_default_dtype(dtype)
        torch.set_rng_state(state)


def same_tensor(made: Any, wanted: torch.Tensor) -> bool:
    """Return whether bits, layout, dtype, device and autograd state are equal; NaN payloads do not count."""
    if not isinstance(made, torch.Tensor) or made.dtype is not wanted.dtype or made.device != wanted.device:
        return False
    if is_zero_tensor(wanted) or is_zero_tensor(made):
        return is_zero_tensor(wanted) and is_zero_tensor(made) and made.shape == wanted.shape
    if _traits(made) != _traits(wanted) or not made.is_leaf:
        return False
    return not unequal(made.detach(), wanted.detach(), bits=True).count


def _traits(tensor: torch.Tensor) -> tuple[Any, ...]:
    lazy = (tensor.is_conj(), tensor.is_neg(), tensor.requires_grad)
    return tensor.shape, tensor.stride(), kept_offset(tensor), *lazy
