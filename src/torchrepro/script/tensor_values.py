"""Spell the elements of a tensor: constant, progression, repeated, seeded, or listed."""

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


class Elements:
    """Guesses for the elements of a tensor, laid out one after the other."""

    def __init__(self, tensor: torch.Tensor, default: torch.dtype) -> None:
        self._flat = tensor.detach().cpu().reshape(-1)
        self._size, self._dtype, self._default = tuple(tensor.shape), tensor.dtype, default
        self._device = "" if tensor.device.type == "cpu" else f', device="{tensor.device}"'
        self._shaped = "" if len(self._size) == 1 else f".reshape({sizes_text(self._size) or '()'})"

    def typed(self, natural: torch.dtype) -> str:
        """Return the keyword arguments of a factory whose default dtype is `natural`."""
        return ("" if self._dtype is natural else f", dtype={self._dtype}") + self._device

    def lines(self) -> Iterator[Line]:
        count = self._flat.numel()
        if count == 0:
            yield Line(f"torch.empty({sizes_text(self._size)}{self.typed(self._default)})")
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
        if not (bits_of(self._flat) == bits_of(self._flat[:1])).all():
            return
        value, size, typed = self._flat[0].item(), self._size, self.typed(self._natural)
        text = number_text(value, self._dtype)
        if not size:
            yield f"torch.tensor({text}{typed})"
            return
        for number, name in ((0, "zeros"), (1, "ones")):
            if value == number and not isinstance(value, bool):
                yield f"torch.{name}({sizes_text(size)}{self.typed(self._default)})"
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
            end = f"({sizes_text(self._size)}{self.typed(self._default)})"
            calls = [f"torch.randn{end}", f"torch.rand{end}"]
        elif self._dtype is not torch.bool:
            bounds = [f"{int(self._flat.max()) + 1}", f"{int(self._flat.min())}, {int(self._flat.max()) + 1}"]
            calls = [f"torch.randint({bound}, {self._size}{self.typed(torch.int64)})" for bound in bounds]
        yield from (Line(call, True, seed) for seed in (None, *_SEEDS) for call in calls)

    def _repetitions(self) -> Iterator[str]:
        """Yield `[1.0, 2.0] * 8` and `[1.0] * 15 + [nan]`."""
        count, bits = self._flat.numel(), bits_of(self._flat)
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
        forms = [(f"[{', '.join(texts)}]", f".reshape({sizes_text(self._size) or '()'})")]
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


def sizes_text(numbers: Sequence[object]) -> str:
    return ", ".join(map(str, numbers))


def bits_of(flat: torch.Tensor) -> torch.Tensor:
    """Return the bytes of each element as a row: equal for equal bits, those of NaN and -0.0 included."""
    return flat.contiguous().view(torch.uint8).reshape(flat.numel(), -1)
