"""Values and calls as Python text, the way a person writes them.

A spelling of a call is a function from a writer of arguments to text. Operators have several, the one that a
person would choose first; `spelling.py` checks that it is the same call by running both on fakes.
"""

from __future__ import annotations

import enum
import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch.fx import Node
from torch.fx.node import map_arg

from torchrepro.graph_text import resolver
from torchrepro.graph_text.literals import quote
from torchrepro.graph_text.syntax import INFIX, PREFIX
from torchrepro.nouns.errors import CannotSerialise
from torchrepro.torch_api.names import C_MODULE
from torchrepro.torch_api.ops import HigherOrderOperator
from torchrepro.torch_api.tensors import hint

ATOM = 20
"""Binds tighter than any operator: a name, a call, a number in brackets."""
_UNARY = 13
_BINDING = {"<": 6, "<=": 6, ">": 6, ">=": 6, "==": 6, "!=": 6, "|": 7, "^": 8, "&": 9, "<<": 10, ">>": 10}
_BINDING |= {"+": 11, "-": 11, "*": 12, "/": 12, "//": 12, "%": 12, "@": 12, "**": 14}
_SIMPLE_OPERAND = re.compile(r"-?[\w.]+")


class Unwritable(Exception):
    """There is no plain way to write this; the message says what it is."""


@dataclass(frozen=True, slots=True)
class Text:
    """An expression, and how tightly its outermost operator binds."""

    text: str
    binding: int = ATOM

    def within(self, binding: int) -> str:
        """Return the text as an operand of an operator that binds this tightly, parenthesised if needed."""
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
        if isinstance(value, Text):
            return value
        if isinstance(value, tuple | list):
            if hasattr(value, "_fields"):
                raise Unwritable(f"a {type(value).__name__} among the arguments")
            return Text(listed([str(self.write(item)) for item in value], type(value)))
        if isinstance(value, dict):
            items = (f"{self.write(key)}: {self.write(item)}" for key, item in value.items())
            return Text("{" + ", ".join(items) + "}")
        if isinstance(value, slice):
            parts = [value.start, value.stop, value.step]
            while len(parts) > 2 and parts[-1] is None:
                parts.pop()
            return Text(f"slice({self.arguments(parts)})")
        return plain(value)

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> str:
        """Return the text between the parentheses of a call."""
        named = [f"{name}={self.write(value)}" for name, value in (kwargs or {}).items()]
        return ", ".join([*(str(self.write(value)) for value in args), *named])

    def index(self, value: Any) -> str:
        """Return the text between the square brackets of `x[...]`."""
        if isinstance(value, tuple) and value:
            items = [self._place(item) for item in value]
            return items[0] + "," if len(items) == 1 else ", ".join(items)
        return self._place(value)

    def _place(self, value: Any) -> str:
        if not isinstance(value, slice):
            return str(self.write(value))
        ends = ["" if part is None else str(self.write(part)) for part in (value.start, value.stop)]
        step = "" if value.step is None else f":{self.write(value.step)}"
        return f"{ends[0]}:{ends[1]}{step}"


def listed(items: Sequence[str], type_: type) -> str:
    """Return the text of a list or a tuple of these items."""
    if issubclass(type_, list):
        return f"[{', '.join(items)}]"
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def plain(value: Any) -> Text:
    """Write a value that is neither a collection nor a node."""
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
    return Text(text, _UNARY if text.startswith("-") else ATOM)


def float_text(value: float) -> str:
    """Return text that evaluates to exactly this value: `1.5`, `1e-05`, `float("inf")`."""
    if math.isfinite(value):
        return repr(value)
    return 'float("nan")' if math.isnan(value) else f'{"-" if value < 0 else ""}float("inf")'


def complex_text(value: complex) -> str:
    """Return `complex(1.0, -0.0)`: arithmetic such as `1 - 0j` may change the sign of a zero."""
    return f"complex({float_text(value.real)}, {float_text(value.imag)})"


_PLAIN: dict[type, Callable[[Any], str]] = {
    **dict.fromkeys((type(None), bool, int, torch.dtype, torch.layout, torch.memory_format), str),
    float: float_text,
    complex: complex_text,
    str: quote,
    torch.device: lambda value: quote(str(value)),
    type(...): lambda value: "...",
}


# Calls.

Spelling = Callable[[Writer], Text]


def infix(sign: str, left: Any, right: Any) -> Spelling:
    def write(writer: Writer) -> Text:
        binding = _BINDING[sign]
        # Operators are left-associative, powers right-associative; comparisons do not chain.
        sides = (binding + 1, _UNARY) if sign == "**" else (binding + (binding == 6), binding + 1)
        first, second = writer.write(left).within(sides[0]), writer.write(right).within(sides[1])
        hugged = sign == "**" and all(_SIMPLE_OPERAND.fullmatch(side) for side in (first, second))
        return Text(f"{first}{sign}{second}" if hugged else f"{first} {sign} {second}", binding)

    return write


def prefix(sign: str, operand: Any) -> Spelling:
    binding = _UNARY if sign != "not " else 1
    # Parenthesise powers: Python reads `-x**2` as `-(x**2)`, which many readers do not expect.
    return lambda writer: Text(sign + writer.write(operand).within(_BINDING["**"] + 1), binding)


def function(name: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Spelling:
    return lambda writer: Text(f"{name}({writer.arguments(args, kwargs)})")


def method(name: str, owner: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Spelling:
    return lambda writer: Text(f"{writer.write(owner).within(ATOM)}.{name}({writer.arguments(args, kwargs)})")


def subscript(owner: Any, index: Any, attribute: str = "") -> Spelling:
    return lambda writer: Text(f"{writer.write(owner).within(ATOM)}{attribute}[{writer.index(index)}]")


def torch_level(node: Node) -> tuple[Spelling, str]:
    """Return a call as capture recorded it, under its public name, and the module that it needs."""
    args, kwargs, target = list(node.args), dict(node.kwargs), node.target
    if node.op == "call_method":
        return method(str(target), args[0], args[1:], kwargs), ""
    if target in INFIX and len(args) == 2:
        return infix(INFIX[target], *args), ""
    if target in PREFIX and len(args) == 1:
        return prefix(PREFIX[target], *args), ""
    if target is operator.getitem:
        return subscript(args[0], args[1]), ""
    if target is getattr and len(args) == 2 and isinstance(args[1], str):
        return lambda writer: Text(f"{writer.write(args[0]).within(ATOM)}.{args[1]}"), ""
    name, module = _name_of(target)
    return function(name, *_without_defaults(target, args, kwargs)), module


@functools.cache
def _public_names() -> dict[int, str]:
    """Return the shortest public name of each function, by identity."""
    found: dict[int, str] = {}
    places = {"torch": torch, "F": functional, "torch.special": torch.special, "torch.linalg": torch.linalg}
    for place, module in {**places, "torch.fft": torch.fft, "math": math}.items():
        for name, value in vars(module).items():
            if callable(value) and not name.startswith("_") and not inspect.isclass(value):
                found.setdefault(id(value), f"{place}.{name}")
    return found


def _name_of(target: Any) -> tuple[str, str]:
    """Return the name by which a script reaches a callable, and the module that it must import for that."""
    public = _public_names().get(id(target))
    if public is not None:
        return public, public.partition(".")[0]
    if isinstance(target, HigherOrderOperator):
        raise Unwritable(f"the higher-order operator {target.name()}")
    path = resolver.path_of(target)
    if path is not None and "functorch" in path:
        raise Unwritable(f"{path}, a part of a transform that capture has taken apart")
    if path is None:
        try:
            path = resolver.trusted_path_of(target).replace(":", ".")
        except CannotSerialise as exc:
            raise Unwritable(f"the function {getattr(target, '__name__', target)}") from exc
        if path.startswith("__main__"):
            raise Unwritable(f"the function {path} of a script")
    if path.startswith("builtins."):
        return path.removeprefix("builtins."), ""
    owner = getattr(target, "__module__", None) or ""
    importable = path.startswith(f"{owner}.") and not owner.startswith(C_MODULE)
    return path, owner if importable else path.partition(".")[0]


def _without_defaults(
    target: Any, args: list[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments without named and trailing positional ones that equal the function's defaults."""
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (ValueError, TypeError):
        return args, kwargs
    defaults = {parameter.name: parameter.default for parameter in parameters}
    named = {name: value for name, value in kwargs.items() if not same_value(value, defaults.get(name))}
    if named:
        return args, named
    while args and len(args) <= len(parameters) and same_value(args[-1], parameters[len(args) - 1].default):
        args = args[:-1]
    return args, named


def same_value(value: Any, other: Any) -> bool:
    """Return whether two plain values are equal and of one type; nodes and tensors equal nothing."""
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(same_value, value, other))
    if isinstance(value, Node | torch.Tensor) or isinstance(other, Node | torch.Tensor):
        return False
    return type(value) is type(other) and bool(value == other)


def nodes_in(value: Any) -> list[Node]:
    """Return all nodes among arguments, in Python's order of evaluation, with repetitions."""
    found: list[Node] = []
    map_arg(value, found.append)
    return found
