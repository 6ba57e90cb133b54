"""An input of a repro as a line of code that makes the very same value: bits, layout, gradients.

A line counts only once it has been evaluated and compared. What no line makes goes to a file next to the
script.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.script.tensor_values import Line, lines_for
from torchrepro.torch_api.names import NEG_VIEW, ZERO_TENSOR
from torchrepro.torch_api.tensors import is_fake, neg_view, plain_torch

_DENSE_LIMIT = 1 << 24
_ALIGNMENT = 64
"""Bytes: the widest vector of a CPU. Compilers ask for no more."""


@dataclass(frozen=True)
class Surroundings:
    """What a line depends on besides its own text."""

    default_dtype: torch.dtype = torch.float32
    random_state: torch.Tensor | None = None
    """Where the draws of earlier lines have left the generator; None where nothing was drawn yet."""


def line_for(tensor: torch.Tensor, around: Surroundings | None = None) -> Line | None:
    """A line that makes this tensor; None where only a file can hold it."""
    around = around or Surroundings()
    if is_fake(tensor) or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    with plain_torch():
        for line in _guesses(tensor, around):
            if _makes(line, tensor, around):
                return line
    return None


def _guesses(tensor: torch.Tensor, around: Surroundings) -> Iterator[Line]:
    """Lines that may make the tensor. Checked on torch 2.11 to 2.15 (`_efficientzerotensor`, `_neg_view`)."""
    if _is_zero_tensor(tensor):
        typed = "" if tensor.dtype is around.default_dtype else f", dtype={tensor.dtype}"
        yield Line(f"{ZERO_TENSOR}({tuple(tensor.shape)}{typed})")
        return
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return
    for line in _without_gradients(tensor.detach(), around):
        if not tensor.requires_grad:
            yield line
            continue
        if _is_one_call(line):
            yield replace(line, text=f"{line.text[:-1]}, requires_grad=True)")
        yield replace(line, text=f"{line.text}.requires_grad_()")


def _is_one_call(line: Line) -> bool:
    """Whether the last bracket closes the factory's own call, so that `requires_grad` can go there."""
    depth = 0
    for position, character in enumerate(line.text):
        depth += (character in "([") - (character in ")]")
        if depth == 0 and character == ")":
            return position == len(line.text) - 1
    return False


def _without_gradients(tensor: torch.Tensor, around: Surroundings) -> Iterator[Line]:
    if tensor.is_conj():
        yield from _with(".conj()", _without_gradients(tensor.conj(), around))
        return
    if tensor.is_neg():
        yield from (
            replace(line, text=f"{NEG_VIEW}({line.text})")
            for line in _without_gradients(neg_view(tensor), around)
        )
        return
    if tensor.numel() == 0:
        typed = "" if tensor.dtype is around.default_dtype else f", dtype={tensor.dtype}"
        typed += "" if tensor.device.type == "cpu" else f', device="{tensor.device}"'
        yield from lines_for(tensor.contiguous(), default=around.default_dtype)
        yield Line(f"torch.empty_strided({tuple(tensor.shape)}, {tuple(tensor.stride())}{typed})")
        return
    if tensor.stride() == _plain_stride(tensor) and not kept_offset(tensor):
        yield from lines_for(tensor, default=around.default_dtype)
        return
    yield from _rearranged(tensor, around)
    yield from _within_a_larger(tensor, around)


def _rearranged(tensor: torch.Tensor, around: Surroundings) -> Iterator[Line]:
    """A dense tensor whose dimensions stand in another order, or are repeated without memory."""
    repeated = [dim for dim, step in enumerate(tensor.stride()) if step == 0 and tensor.shape[dim] > 1]
    if repeated:
        kept = tensor
        for dim in repeated:
            kept = kept.narrow(dim, 0, 1)
        while kept.dim() > 1 and kept.shape[0] == 1 and 0 in repeated:
            kept, repeated = kept[0], [dim - 1 for dim in repeated]
        sizes = ", ".join(map(str, tensor.shape))
        yield from _with(f".expand({sizes})", lines_for(kept.contiguous(), default=around.default_dtype))
        return
    order = sorted(range(tensor.dim()), key=lambda dim: (-int(tensor.stride()[dim]), dim))
    ordered = tensor.permute(order)
    if not ordered.is_contiguous():
        return
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        suffix = ".to(memory_format=torch.channels_last)"
        yield from _with(suffix, lines_for(tensor.contiguous(), default=around.default_dtype))
    back = [order.index(dim) for dim in range(tensor.dim())]
    moved = [dim for dim, place in enumerate(back) if dim != place]
    if tensor.dim() == 2:
        suffix = ".t()"
    elif len(moved) == 2:
        suffix = f".transpose({moved[0]}, {moved[1]})"
    else:
        suffix = f".permute({', '.join(map(str, back))})"
    yield from _with(suffix, lines_for(ordered.contiguous(), default=around.default_dtype))


def _within_a_larger(tensor: torch.Tensor, around: Surroundings) -> Iterator[Line]:
    """A part of a larger memory: what lies between its elements is made up."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    offset = kept_offset(tensor)
    whole = offset + reach + 1
    if tensor.numel() == 0 or whole > _DENSE_LIMIT:
        return
    first = tensor.reshape(-1)[:1].contiguous()
    memory = torch.empty(whole, dtype=tensor.dtype, device=tensor.device)
    memory.copy_(first.expand(whole))
    place = (tuple(tensor.shape), tuple(tensor.stride()), offset)
    memory.as_strided(*place).copy_(tensor)
    suffix = f".as_strided({place[0]}, {place[1]}{f', {place[2]}' if place[2] else ''})"
    yield from _with(suffix, lines_for(memory, default=around.default_dtype))


def _plain_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides that factories give a tensor of this size; those of a dimension of 1 may be others."""
    return tuple(torch.empty(tensor.shape, device="meta").stride())


def kept_offset(tensor: torch.Tensor) -> int:
    """Where in its memory the tensor starts, if that changes how well it is aligned; else 0."""
    offset = int(tensor.storage_offset())
    return offset if offset * tensor.dtype.itemsize % _ALIGNMENT else 0


def _with(suffix: str, lines: Iterator[Line]) -> Iterator[Line]:
    return (replace(line, text=line.text + suffix) for line in lines)


def _makes(line: Line, wanted: torch.Tensor, around: Surroundings) -> bool:
    """Whether the line evaluates to the very same tensor."""
    if line.drawn and line.seed is None and around.random_state is None:
        return False
    try:
        made, _ = _evaluated(line, around)
    except (RuntimeError, TypeError, ValueError, OverflowError, NotImplementedError):
        return False  # a factory that does not know this dtype, a number that does not fit
    return same_tensor(made, wanted)


def after_drawing(line: Line, around: Surroundings) -> Surroundings:
    """The surroundings of the next line."""
    with plain_torch():
        return replace(around, random_state=_evaluated(line, around)[1])


def _evaluated(line: Line, around: Surroundings) -> tuple[Any, torch.Tensor]:
    """What a line makes, and the generator's state after it; this process's own state stays."""
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
    """Equal in bits, dtype, device, layout and what autograd knows; a NaN's payload does not count."""
    if not isinstance(made, torch.Tensor) or made.dtype is not wanted.dtype or made.device != wanted.device:
        return False
    if _is_zero_tensor(wanted) or _is_zero_tensor(made):
        return _is_zero_tensor(wanted) and _is_zero_tensor(made) and made.shape == wanted.shape
    if _geometry(made) != _geometry(wanted):
        return False
    if made.requires_grad != wanted.requires_grad or not made.is_leaf:
        return False
    bits, wanted_bits = _bits(made), _bits(wanted)
    return torch.equal(bits, wanted_bits) or _same_but_payloads(made, wanted)


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), kept_offset(tensor), tensor.is_conj(), tensor.is_neg()


def _same_but_payloads(made: torch.Tensor, wanted: torch.Tensor) -> bool:
    if not (wanted.dtype.is_floating_point or wanted.dtype.is_complex):
        return False
    made, wanted = (tensor.detach().resolve_conj().resolve_neg().to("cpu") for tensor in (made, wanted))
    if made.is_complex():
        made, wanted = torch.view_as_real(made), torch.view_as_real(wanted)
    if made.dtype.itemsize == 1:  # float8 has neither isnan nor indices
        made, wanted = made.float(), wanted.float()
    nan = wanted.isnan()
    return torch.equal(made.isnan(), nan) and torch.equal(_bits(made[~nan]), _bits(wanted[~nan]))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8)


def _is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Zeros without memory, as autograd makes them. Checked on torch 2.11 to 2.15."""
    return bool(tensor._is_zerotensor())
