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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchrepro.graph_text import resolver
from torchrepro.graph_text.literals import quote
from torchrepro.graph_text.syntax import INFIX, PREFIX
from torchrepro.nouns.errors import CannotSerialise
from torchrepro.torch_api.names import C_MODULE
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload
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
    return quote(str(value))


_PLAIN: dict[type, Callable[[Any], str]] = {
    type(None): str,
    bool: str,
    int: str,
    float: float_text,
    complex: complex_text,
    str: quote,
    torch.device: _device,
    torch.dtype: str,
    torch.layout: str,
    torch.memory_format: str,
    type(...): lambda value: "...",
}


# Calls.

Spelling = Callable[[Writer], Text]

_BINDING = {"<": 6, "<=": 6, ">": 6, ">=": 6, "==": 6, "!=": 6, "|": 7, "^": 8, "&": 9, "<<": 10, ">>": 10}
_BINDING |= {"+": 11, "-": 11, "*": 12, "/": 12, "//": 12, "%": 12, "@": 12, "**": 14}
_UNARY = 13
_SIMPLE_OPERAND = re.compile(r"-?[\w.]+")


def infix(sign: str, left: Any, right: Any) -> Spelling:
    def write(writer: Writer) -> Text:
        binding = _BINDING[sign]
        # Python computes from the left, powers from the right; comparisons do not chain.
        sides = (binding + 1, _UNARY) if sign == "**" else (binding + (binding == 6), binding + 1)
        first, second = writer.write(left).within(sides[0]), writer.write(right).within(sides[1])
        hugged = sign == "**" and all(_SIMPLE_OPERAND.fullmatch(side) for side in (first, second))
        return Text(f"{first}{sign}{second}" if hugged else f"{first} {sign} {second}", binding)

    return write


def prefix(sign: str, operand: Any) -> Spelling:
    binding = _UNARY if sign != "not " else 1
    # `-x**2` means `-(x**2)`, which few know.
    return lambda writer: Text(sign + writer.write(operand).within(_BINDING["**"] + 1), binding)


def function(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Spelling:
    return lambda writer: Text(f"{name}({_arguments(writer, args, kwargs)})")


def method(name: str, owner: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Spelling:
    return lambda writer: Text(
        f"{writer.write(owner).within(ATOM)}.{name}({_arguments(writer, args, kwargs)})"
    )


def attribute(owner: Any, name: str) -> Spelling:
    return lambda writer: Text(f"{writer.write(owner).within(ATOM)}.{name}")


def subscript(owner: Any, index: Any) -> Spelling:
    return lambda writer: Text(f"{writer.write(owner).within(ATOM)}[{writer.index(index)}]")


def _arguments(writer: Writer, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    texts = [str(writer.write(value)) for value in args]
    texts += [f"{name}={writer.write(value)}" for name, value in kwargs.items()]
    return ", ".join(texts)


def torch_level(node: Node) -> tuple[Spelling, str]:
    """A call as capture recorded it, under its public name, and the module that it needs."""
    args, kwargs, target = list(node.args), dict(node.kwargs), node.target
    if node.op == "call_method":
        return method(str(target), args[0], args[1:], kwargs), ""
    if target in INFIX and len(args) == 2:
        return infix(INFIX[target], *args), ""
    if target in PREFIX and len(args) == 1:
        return prefix(PREFIX[target], *args), ""
    if target is operator.getitem:
        return subscript(*args), ""
    if target is getattr and len(args) == 2 and isinstance(args[1], str):
        return attribute(args[0], args[1]), ""
    name, module = _name_of(target)
    args, kwargs = _without_defaults(target, args, kwargs)
    return function(name, args, kwargs), module


def operator_call(node: Node) -> Spelling:
    """The call by the operator's own name: always the same."""
    target = node.target
    assert isinstance(target, OpOverload)
    return function(f"torch.ops.{target}", list(node.args), dict(node.kwargs))


@functools.cache
def _public_names() -> dict[int, str]:
    """The shortest public name of each function, by identity."""
    import torch.nn.functional as functional

    found: dict[int, str] = {}
    places: list[tuple[str, Any]] = [
        ("torch", torch),
        ("F", functional),
        ("torch.special", torch.special),
        ("torch.linalg", torch.linalg),
        ("torch.fft", torch.fft),
        ("math", math),
    ]
    for prefix_, module in places:
        for name, value in vars(module).items():
            if callable(value) and not name.startswith("_") and not inspect.isclass(value):
                found.setdefault(id(value), f"{prefix_}.{name}")
    return found


def _name_of(target: Any) -> tuple[str, str]:
    """The name by which a script reaches a callable, and the module that it must import for that."""
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
    """The arguments without those at the end that are the function's own defaults."""
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
    """Whether two plain values are equal and of one kind; nodes and tensors equal nothing."""
    if isinstance(value, list | tuple) and isinstance(other, list | tuple):
        return len(value) == len(other) and all(map(same_value, value, other))
    if isinstance(value, Node | torch.Tensor) or isinstance(other, Node | torch.Tensor):
        return False
    return type(value) is type(other) and bool(value == other)


def nodes_in(value: Any) -> Iterator[Node]:
    """All nodes among arguments, in the order in which Python evaluates them, repeated ones again."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from nodes_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from nodes_in(item)
    elif isinstance(value, slice):
        yield from nodes_in((value.start, value.stop, value.step))
