"""An input of a repro as a line of code that makes the very same value: bits, layout, gradients.

Lines are guesses, the one that a person would choose first. A line counts only once it has been evaluated and
compared, so a wrong one costs microseconds. What no line makes goes to a file next to the script.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch

from torchrepro.judge.tensors import unequal
from torchrepro.script.expressions import WIDTH, complex_text, float_text
from torchrepro.torch_api.names import NEG_VIEW, ZERO_TENSOR
from torchrepro.torch_api.tensors import is_fake, is_zero_tensor, neg_view, plain_torch

LITERAL_ELEMENTS = 64
"""Beyond this, numbers written out tell a reader nothing: they go to a file."""
_ONE_CALL = re.compile(r"torch\.\w+\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
"""A call of a factory with nothing after it: `requires_grad` can go there."""
_RUNS = 6
_PERIOD = 8
_SEEDS = (0, 1, 42, 1234)
_DENSE_LIMIT = 1 << 24
_ALIGNMENT = 64
"""Bytes: the widest vector of a CPU. Compilers ask for no more."""


@dataclass(frozen=True, slots=True)
class Line:
    """An expression, and what it needs before it."""

    text: str
    drawn: bool = False
    """Whether it draws random numbers."""
    seed: int | None = None
    """What `torch.manual_seed` must be given right before it; None: the draws go on where they were."""


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
    if _is_zero_tensor(tensor):
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
        yield from _Elements(tensor, default).lines()
        typed = _Elements(tensor, default).typed(default)
        yield Line(f"torch.empty_strided({tuple(tensor.shape)}, {tuple(tensor.stride())}{typed})")
        return
    # The strides that factories give a tensor of this size; those of a dimension of size 1 may differ.
    if tensor.stride() == torch.empty(tensor.shape, device="meta").stride() and not kept_offset(tensor):
        yield from _Elements(tensor, default).lines()
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
        yield from _with(f".expand({_sizes(tensor.shape)})", _Elements(kept, default).lines())
        return
    order = sorted(range(tensor.dim()), key=lambda dim: (-int(tensor.stride()[dim]), dim))
    ordered = tensor.permute(order)
    if not ordered.is_contiguous():
        return
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last):
        yield from _with(".to(memory_format=torch.channels_last)", _Elements(tensor, default).lines())
    back = [order.index(dim) for dim in range(tensor.dim())]
    moved = [dim for dim, place in enumerate(back) if dim != place]
    suffix = f".permute({_sizes(back)})"
    if len(moved) == 2:
        suffix = ".t()" if tensor.dim() == 2 else f".transpose({_sizes(moved)})"
    yield from _with(suffix, _Elements(ordered, default).lines())


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
    yield from _with(f".as_strided({_sizes(place)})", _Elements(memory, default).lines())


def kept_offset(tensor: torch.Tensor) -> int:
    """Return the tensor's offset in its memory, if that changes its alignment; else 0."""
    offset = int(tensor.storage_offset())
    return offset if offset * tensor.dtype.itemsize % _ALIGNMENT else 0


def _with(suffix: str, lines: Iterator[Line]) -> Iterator[Line]:
    return (replace(line, text=line.text + suffix) for line in lines)


# What the elements are.


class _Elements:
    """Guesses for the elements of a tensor, laid out one after the other."""

    def __init__(self, tensor: torch.Tensor, default: torch.dtype) -> None:
        self._flat = tensor.detach().cpu().reshape(-1)
        self._size, self._dtype, self._default = tuple(tensor.shape), tensor.dtype, default
        self._device = "" if tensor.device.type == "cpu" else f', device="{tensor.device}"'
        self._shaped = "" if len(self._size) == 1 else f".reshape({_sizes(self._size) or '()'})"

    def typed(self, natural: torch.dtype) -> str:
        """Return the keyword arguments of a factory whose default dtype is `natural`."""
        return ("" if self._dtype is natural else f", dtype={self._dtype}") + self._device

    def lines(self) -> Iterator[Line]:
        count = self._flat.numel()
        if count == 0:
            yield Line(f"torch.empty({_sizes(self._size)}{self.typed(self._default)})")
            return
        if count <= 1 << 22:
            yield from map(Line, self._constant())
            if self._size:
                yield from map(Line, self._progressions())
                yield from self._draws()
                yield from map(Line, self._repetitions())
        if count <= LITERAL_ELEMENTS:
            yield from map(Line, self._literals())

    @property
    def _natural(self) -> torch.dtype:
        """What `torch.tensor` and `torch.full` make of a Python number like the first element."""
        value = self._flat[0].item()
        if isinstance(value, complex):
            return torch.complex128 if self._default is torch.float64 else torch.complex64
        return {bool: torch.bool, int: torch.int64}.get(type(value), self._default)

    def _texts(self) -> list[str]:
        return [number_text(value, self._dtype) for value in self._flat.tolist()]

    def _constant(self) -> Iterator[str]:
        if not (_bits(self._flat) == _bits(self._flat[:1])).all():
            return
        value, size, typed = self._flat[0].item(), self._size, self.typed(self._natural)
        text = number_text(value, self._dtype)
        if not size:
            yield f"torch.tensor({text}{typed})"
            return
        for number, name in ((0, "zeros"), (1, "ones")):
            if value == number and not isinstance(value, bool):
                yield f"torch.{name}({_sizes(size)}{self.typed(self._default)})"
        if size == (1,) and not isinstance(value, bool):
            yield f"torch.tensor([{text}]{typed})"
        yield f"torch.full({size}, {text}{typed})"
        yield f"torch.full({size}, {text}{self._device}).to({self._dtype})"

    def _progressions(self) -> Iterator[str]:
        count = self._flat.numel()
        if self._dtype.is_complex or self._dtype is torch.bool or count < 3:
            return
        start, second, last = self._flat[[0, 1, -1]].to(torch.float64).tolist()
        step = second - start
        if not math.isfinite(step + last) or step == 0:
            return
        if not math.isclose(start + step * (count - 1), last, rel_tol=0.1, abs_tol=abs(step)):
            return
        if start.is_integer() and step.is_integer():
            whole = [int(start), int(start + step * count), int(step)]
            if self._dtype is self._default:
                yield from self._arange([f"{number}.0" for number in whole], self._default)
            yield from self._arange([str(number) for number in whole], torch.int64)
        else:
            for stop in (start + step * count, start + step * (count - 0.5)):
                numbers = (start, float(f"{stop:.4g}"), step)
                yield from self._arange([_shortest(number, self._dtype) for number in numbers], self._default)
        ends = ", ".join(_shortest(number, self._dtype) for number in (start, last))
        yield f"torch.linspace({ends}, {count}{self.typed(self._default)}){self._shaped}"

    def _arange(self, numbers: Sequence[str], natural: torch.dtype) -> Iterator[str]:
        start, stop, step = numbers
        one = float(step) == 1
        given = stop if one and float(start) == 0 else ", ".join([start, stop] if one else numbers)
        yield f"torch.arange({given}{self.typed(natural)}){self._shaped}"
        yield f"torch.arange({given}{self._device}).to({self._dtype}){self._shaped}"

    def _draws(self) -> Iterator[Line]:
        """Yield random draws after a seed: models in reports start with `torch.manual_seed(0)`."""
        if self._device or self._dtype.is_complex or self._flat.numel() <= _PERIOD:
            return  # a few literal numbers are more informative than a seed
        calls = []
        if self._dtype.is_floating_point:
            end = f"({_sizes(self._size)}{self.typed(self._default)})"
            calls = [f"torch.randn{end}", f"torch.rand{end}"]
        elif self._dtype is not torch.bool:
            bounds = [f"{int(self._flat.max()) + 1}", f"{int(self._flat.min())}, {int(self._flat.max()) + 1}"]
            calls = [f"torch.randint({bound}, {self._size}{self.typed(torch.int64)})" for bound in bounds]
        yield from (Line(call, True, seed) for seed in (None, *_SEEDS) for call in calls)

    def _repetitions(self) -> Iterator[str]:
        """Yield `[1.0, 2.0] * 8` and `[1.0] * 15 + [nan]`."""
        count, bits = self._flat.numel(), _bits(self._flat)
        end = f"{self.typed(self._natural)}){self._shaped}"
        for period in range(2, min(_PERIOD, count // 2) + 1):
            if count % period == 0 and bool((bits == bits[:period].repeat(count // period, 1)).all()):
                first = [number_text(value, self._dtype) for value in self._flat[:period].tolist()]
                yield f"torch.tensor([{', '.join(first)}] * {count // period}{end}"
                break
        if 4 <= count <= 1 << 16:
            changes = 1 + int((bits[1:] != bits[:-1]).any(1).sum())
            if changes <= min(_RUNS, count // 2):
                runs = [(key, len(list(group))) for key, group in groupby(self._texts())]
                parts = [f"[{key}]" if length == 1 else f"[{key}] * {length}" for key, length in runs]
                yield f"torch.tensor({' + '.join(parts)}{end}"

    def _literals(self) -> Iterator[str]:
        texts, typed = self._texts(), self.typed(self._natural)
        nested = _nested(texts, self._size)
        forms = [(f"[{', '.join(texts)}]", f".reshape({_sizes(self._size) or '()'})")]
        if len(nested) < WIDTH - 30 or len(self._size) == 1:
            forms.insert(0, (nested, ""))
        for listed, shaped in forms:
            yield f"torch.tensor({listed}{typed}){shaped}"
            yield f"torch.tensor({listed}{self._device}).to({self._dtype}){shaped}"


def number_text(value: Any, dtype: torch.dtype) -> str:
    """Return the shortest text that this dtype reads back as the value."""
    if isinstance(value, complex):
        return complex_text(value)
    return _shortest(value, dtype) if isinstance(value, float) else str(value)


def _shortest(value: float, dtype: torch.dtype) -> str:
    if not math.isfinite(value):
        return float_text(value)
    digits = shortest_digits(value, dtype)
    # `repr` writes 3e10 as 30000000000.0.
    short = digits if abs(float(digits)) >= 1e7 else repr(float(digits))
    return short.replace("e+", "e")


def shortest_digits(value: float, dtype: torch.dtype) -> str:
    """Return the fewest digits that mean this number in this dtype: `0.1` for the float32 nearest to it."""
    for count in range(1, 18):
        text = f"{value:.{count}g}"
        if float(torch.tensor(float(text), dtype=torch.float64).to(dtype)) == value:
            return text
    return repr(value)


def _nested(texts: Sequence[str], size: tuple[int, ...]) -> str:
    if len(size) < 2:
        return f"[{', '.join(texts)}]" if size else texts[0]
    step = len(texts) // size[0]
    rows = (texts[start : start + step] for start in range(0, len(texts), step))
    return f"[{', '.join(_nested(row, size[1:]) for row in rows)}]"


def _sizes(numbers: Sequence[object]) -> str:
    return ", ".join(map(str, numbers))


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
    if _is_zero_tensor(wanted) or _is_zero_tensor(made):
        return _is_zero_tensor(wanted) and _is_zero_tensor(made) and made.shape == wanted.shape
    if _traits(made) != _traits(wanted) or not made.is_leaf:
        return False
    return not unequal(made.detach(), wanted.detach(), bits=True).count


def _traits(tensor: torch.Tensor) -> tuple[Any, ...]:
    lazy = (tensor.is_conj(), tensor.is_neg(), tensor.requires_grad)
    return tensor.shape, tensor.stride(), kept_offset(tensor), *lazy


def _bits(flat: torch.Tensor) -> torch.Tensor:
    """Return the bytes of each element as a row: equal for equal bits, those of NaN and -0.0 included."""
    return flat.contiguous().view(torch.uint8).reshape(flat.numel(), -1)


def _is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Return whether it is zeros without memory, as autograd makes them. Checked on torch 2.11 to 2.15."""
    return is_zero_tensor(tensor)
