"""Arguments of calls as Python text, the way a person writes them."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchrepro.script.layout import quoted
from torchrepro.torch_api.tensors import hint

ATOM = 20
"""Binds tighter than any operator: a name, a call, a number in brackets."""
NEGATIVE = 13


class Unwritable(Exception):
    """There is no plain way to write this; the message says what it is."""


@dataclass(frozen=True, slots=True)
class Text:
    """An expression, and how tightly its outermost operator binds."""

    text: str
    binding: int = ATOM

    def within(self, binding: int) -> str:
        """The text as an operand of an operator that binds so tightly."""
        return self.text if self.binding >= binding else f"({self.text})"

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Writer:
    """Writes values; nodes of a graph are written by the texts given."""

    nodes: Mapping[Node, Text]

    def write(self, value: Any) -> Text:
        if isinstance(value, Node):
            return self.nodes[value]
        if isinstance(value, tuple | list):
            return Text(self._sequence(value))
        if isinstance(value, dict):
            items = (f"{self.write(key)}: {self.write(item)}" for key, item in value.items())
            return Text("{" + ", ".join(items) + "}")
        if isinstance(value, slice):
            parts = [value.start, value.stop, value.step]
            while len(parts) > 1 and parts[-1] is None:
                parts.pop()
            whole = [None, *parts] if len(parts) == 1 else parts
            return Text(f"slice({', '.join(str(self.write(part)) for part in whole)})")
        return plain(value)

    def _sequence(self, value: Sequence[Any]) -> str:
        items = [str(self.write(item)) for item in value]
        if isinstance(value, list):
            return f"[{', '.join(items)}]"
        fields = getattr(value, "_fields", None)
        if fields is not None:
            raise Unwritable(f"a {type(value).__name__} among the arguments")
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"

    def index(self, value: Any) -> str:
        """What stands between the square brackets of `x[...]`."""
        if isinstance(value, tuple) and value:
            items = [self._place(item) for item in value]
            return items[0] + "," if len(items) == 1 else ", ".join(items)
        return self._place(value)

    def _place(self, value: Any) -> str:
        if value is ...:
            return "..."
        if not isinstance(value, slice):
            return str(self.write(value))
        ends = ["" if part is None else str(self.write(part)) for part in (value.start, value.stop)]
        step = "" if value.step is None else f":{self.write(value.step)}"
        return f"{ends[0]}:{ends[1]}{step}"


def plain(value: Any) -> Text:
    """A value that is no collection and no node."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        value = hint(value)
        if value is None:
            raise Unwritable("a number that is known only while the graph runs")
    if isinstance(value, enum.Enum):
        return Text(f"{type(value).__module__}.{type(value).__qualname__}.{value.name}")
    writer = _PLAIN.get(type(value))
    if writer is None:
        raise Unwritable(f"a value of type {type(value).__name__} among the arguments")
    text = writer(value)
    return Text(text, NEGATIVE if text.startswith("-") else ATOM)


def float_text(value: float) -> str:
    """`1.5`, `1e-05`, `float("inf")`: evaluates to the very value."""
    if math.isfinite(value):
        return repr(value)
    return 'float("nan")' if math.isnan(value) else f'{"-" if value < 0 else ""}float("inf")'


def complex_text(value: complex) -> str:
    """`complex(1.0, -0.0)`: what `1 - 0j` means depends on signs."""
    return f"complex({float_text(value.real)}, {float_text(value.imag)})"


def _device(value: torch.device) -> str:
    return quoted(str(value))


_PLAIN: dict[type, Callable[[Any], str]] = {
    type(None): str,
    bool: str,
    int: str,
    float: float_text,
    complex: complex_text,
    str: quoted,
    torch.device: _device,
    torch.dtype: str,
    torch.layout: str,
    torch.memory_format: str,
    type(...): lambda value: "...",
}
