"""The elements of a tensor in one line: every way that a person might write them, the shortest first.

These are guesses: `tensors.py` evaluates each line and compares bits, so a wrong one costs microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from torchrepro.script.expressions import complex_text, float_text
from torchrepro.script.layout import WIDTH

LITERAL_ELEMENTS = 64
"""Beyond this, numbers written out tell a reader nothing: they go to a file."""
_RUNS = 6
_PERIOD = 8
_SEEDS = (0, 1, 42, 1234)


@dataclass(frozen=True, slots=True)
class Line:
    """An expression, and what it needs before it."""

    text: str
    drawn: bool = False
    """Whether it draws random numbers."""
    seed: int | None = None
    """What `torch.manual_seed` must be given right before it; None: the draws go on where they were."""


def lines_for(tensor: torch.Tensor, *, default: torch.dtype) -> Iterator[Line]:
    """Guesses for a contiguous tensor without gradients; `default` is torch's default dtype."""
    size, dtype = tuple(tensor.shape), tensor.dtype
    arguments = _Arguments(dtype, default, tensor.device)
    if tensor.numel() == 0:
        yield Line(f"torch.empty({_size(size)}{arguments.typed(default)})")
        return
    flat = tensor.detach().cpu().reshape(-1)
    if tensor.numel() <= 1 << 22:
        yield from _constant(flat, size, arguments)
        if size:
            yield from _progressions(flat, size, arguments)
            yield from _draws(flat, size, arguments)
            yield from _repetitions(flat, size, arguments)
    if flat.numel() <= LITERAL_ELEMENTS:
        yield from _literal(tensor, arguments)


class _Arguments:
    """The keyword arguments of factories: dtype and device, where they are not what the factory takes."""

    def __init__(self, dtype: torch.dtype, default: torch.dtype, device: torch.device) -> None:
        self.dtype, self.default = dtype, default
        self.device = "" if device.type == "cpu" else f', device="{device}"'

    def typed(self, natural: torch.dtype | None) -> str:
        dtype = "" if self.dtype is natural else f", dtype={self.dtype}"
        return dtype + self.device


def _constant(flat: torch.Tensor, size: tuple[int, ...], arguments: _Arguments) -> Iterator[Line]:
    value = flat[0].item()
    if flat.numel() > 1 and not (_bits(flat) == _bits(flat[:1])).all():
        return
    natural = _natural_dtype(value, arguments.default)
    if not size:
        yield Line(f"torch.tensor({number_text(value, flat.dtype)}{arguments.typed(natural)})")
        return
    if isinstance(value, bool):
        yield Line(f"torch.full({_tuple(size)}, {value}{arguments.typed(natural)})")
        return
    for number, name in ((0, "zeros"), (1, "ones")):
        if value == number:
            yield Line(f"torch.{name}({_size(size)}{arguments.typed(arguments.default)})")
    text = number_text(value, flat.dtype)
    if size == (1,):
        yield Line(f"torch.tensor([{text}]{arguments.typed(natural)})")
    yield Line(f"torch.full({_tuple(size)}, {text}{arguments.typed(natural)})")
    yield Line(f"torch.full({_tuple(size)}, {text}{arguments.device}).to({flat.dtype})")


def _progressions(flat: torch.Tensor, size: tuple[int, ...], arguments: _Arguments) -> Iterator[Line]:
    if flat.dtype.is_complex or flat.dtype is torch.bool or flat.numel() < 3:
        return
    ends = flat[[0, 1, -1]].to(torch.float64)
    if not bool(ends.isfinite().all()):
        return
    start, second, last = (float(value) for value in ends)
    step, count = second - start, flat.numel()
    if step == 0 or not math.isclose(start + step * (count - 1), last, rel_tol=0.1, abs_tol=abs(step)):
        return
    shaped = "" if len(size) == 1 else f".reshape({_size(size)})"
    whole = start.is_integer() and step.is_integer()
    if whole:
        numbers = [int(start), int(start + step * count), int(step)]
        if arguments.dtype is arguments.default:
            yield from _arange([f"{number}.0" for number in numbers], arguments.default, shaped, arguments)
        yield from _arange([str(number) for number in numbers], torch.int64, shaped, arguments)
    else:
        for stop in (start + step * count, start + step * (count - 0.5)):
            texts = [_shortest(number, flat.dtype) for number in (start, float(f"{stop:.4g}"), step)]
            yield from _arange(texts, arguments.default, shaped, arguments)
    ends_text = ", ".join(_shortest(number, flat.dtype) for number in (start, last))
    typed = arguments.typed(arguments.default)
    yield Line(f"torch.linspace({ends_text}, {count}{typed}){shaped}")


def _arange(
    numbers: Sequence[str], natural: torch.dtype, shaped: str, arguments: _Arguments
) -> Iterator[Line]:
    start, stop, step = numbers
    zero, one = float(start) == 0, float(step) == 1
    given = stop if zero and one else f"{start}, {stop}" if one else f"{start}, {stop}, {step}"
    yield Line(f"torch.arange({given}{arguments.typed(natural)}){shaped}")
    yield Line(f"torch.arange({given}{arguments.device}).to({arguments.dtype}){shaped}")


def _draws(flat: torch.Tensor, size: tuple[int, ...], arguments: _Arguments) -> Iterator[Line]:
    """What a seed gives: models in reports start with `torch.manual_seed(0)`."""
    if arguments.device or flat.dtype.is_complex or flat.numel() <= _PERIOD:
        return  # a few numbers tell more than a seed
    calls = []
    if flat.dtype.is_floating_point:
        calls = [
            f"torch.{name}({_size(size)}{arguments.typed(arguments.default)})" for name in ("randn", "rand")
        ]
    elif flat.dtype is not torch.bool:
        low, high = int(flat.min()), int(flat.max()) + 1
        bounds = dict.fromkeys(str(number) for number in (high, *_round_bounds(low, high)))
        typed = arguments.typed(torch.int64)
        calls = [f"torch.randint({bound}, {_tuple(size)}{typed})" for bound in bounds]
    yield from (Line(call, True, seed) for seed in (None, *_SEEDS) for call in calls)


def _round_bounds(low: int, high: int) -> Iterator[str]:
    """Bounds that a person may have chosen for integers between these."""
    for unit in (1, 5, 10, 50, 100, 1000):
        wide = (low // unit * unit, -(-high // unit) * unit)
        if wide[1] - wide[0] <= 2 * (high - low) + unit:
            yield f"{wide[0]}, {wide[1]}" if wide[0] else f"{wide[1]}"


def _repetitions(flat: torch.Tensor, size: tuple[int, ...], arguments: _Arguments) -> Iterator[Line]:
    """`[1.0, 2.0] * 8` and `[1.0] * 15 + [nan]`."""
    count = flat.numel()
    if count < 4:
        return
    bits = _bits(flat)
    for period in range(2, min(_PERIOD, count // 2) + 1):
        rows = bits.reshape(count // period, -1) if count % period == 0 else bits
        if count % period == 0 and bool((rows == rows[0]).all()):
            yield _listed(f"{_list(flat[:period])} * {count // period}", flat, size, arguments)
            break
    if count <= 1 << 16:
        changes = 1 + int((bits[1:] != bits[:-1]).reshape(count - 1, -1).any(1).sum())
        if changes <= min(_RUNS, count // 2):
            runs = [(key, len(list(group))) for key, group in groupby(_texts(flat))]
            parts = [f"[{key}]" if length == 1 else f"[{key}] * {length}" for key, length in runs]
            yield _listed(" + ".join(parts), flat, size, arguments)


def _listed(items: str, flat: torch.Tensor, size: tuple[int, ...], arguments: _Arguments) -> Line:
    shaped = "" if len(size) == 1 else f".reshape({_size(size)})"
    typed = arguments.typed(_natural_dtype(flat[0].item(), arguments.default))
    return Line(f"torch.tensor({items}{typed}){shaped}")


def _literal(tensor: torch.Tensor, arguments: _Arguments) -> Iterator[Line]:
    flat = tensor.detach().cpu().reshape(-1)
    typed = arguments.typed(_natural_dtype(flat[0].item(), arguments.default))
    nested = _nested(_texts(flat), tuple(tensor.shape))
    if len(nested) < WIDTH - 30 or tensor.dim() == 1:
        yield Line(f"torch.tensor({nested}{typed})")
        yield Line(f"torch.tensor({nested}{arguments.device}).to({flat.dtype})")
    listed = f"torch.tensor([{', '.join(_texts(flat))}]"
    yield Line(f"{listed}{typed}).reshape({_size(tuple(tensor.shape))})")
    yield Line(f"{listed}{arguments.device}).to({flat.dtype}).reshape({_size(tuple(tensor.shape))})")


def number_text(value: Any, dtype: torch.dtype) -> str:
    """The shortest text that this dtype reads back as the value."""
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
    """Return the fewest digits that mean this number in this dtype: `0.1` for the float32 next to it."""
    for count in range(1, 18):
        text = f"{value:.{count}g}"
        if float(torch.tensor(float(text), dtype=torch.float64).to(dtype)) == value:
            return text
    return repr(value)


def _texts(flat: torch.Tensor) -> list[str]:
    return [number_text(value, flat.dtype) for value in flat.tolist()]


def _list(flat: torch.Tensor) -> str:
    return f"[{', '.join(_texts(flat))}]"


def _nested(texts: Sequence[str], size: tuple[int, ...]) -> str:
    if len(size) < 2:
        return f"[{', '.join(texts)}]" if size else texts[0]
    step = len(texts) // size[0]
    rows = (texts[start : start + step] for start in range(0, len(texts), step))
    return f"[{', '.join(_nested(row, size[1:]) for row in rows)}]"


def _natural_dtype(value: Any, default: torch.dtype) -> torch.dtype:
    """What `torch.tensor` and `torch.full` make of a Python number."""
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, int):
        return torch.int64
    if isinstance(value, complex):
        return torch.complex128 if default is torch.float64 else torch.complex64
    return default


def _bits(flat: torch.Tensor) -> torch.Tensor:
    """The bytes of each element, a row each: equal for equal bits, those of NaN and -0.0 included."""
    return flat.contiguous().view(torch.uint8).reshape(flat.numel(), -1)


def _size(size: tuple[int, ...]) -> str:
    return ", ".join(map(str, size)) if size else "()"


def _tuple(size: tuple[int, ...]) -> str:
    return f"({size[0]},)" if len(size) == 1 else f"({_size(size)})" if size else "()"
