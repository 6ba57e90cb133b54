"""How a call in a graph is written: by infix operators, methods and public functions where they are the same.

A spelling is a function from a writer of arguments to text. For operators there are several, the one that a
person would choose first; whether it is the same call is checked by running both on fakes.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchrepro.graph_text import resolver
from torchrepro.graph_text.syntax import INFIX, PREFIX
from torchrepro.nouns.errors import CannotSerialise
from torchrepro.script.literals import ATOM, Text, Unwritable, Writer
from torchrepro.torch_api.ops import HigherOrderOperator, OpOverload

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


@dataclass(frozen=True, slots=True)
class Found:
    """The one way to write a call that is no operator of ATen, and the module that it needs."""

    spelling: Spelling
    module: str = ""


def torch_level(node: Node) -> Found:
    """A call as capture recorded it: the same function under its public name."""
    args, kwargs, target = list(node.args), dict(node.kwargs), node.target
    if node.op == "call_method":
        return Found(method(str(target), args[0], args[1:], kwargs))
    if target in INFIX and len(args) == 2:
        return Found(infix(INFIX[target], *args))
    if target in PREFIX and len(args) == 1:
        return Found(prefix(PREFIX[target], *args))
    if target is operator.getitem:
        return Found(subscript(*args))
    if target is getattr and len(args) == 2 and isinstance(args[1], str):
        return Found(attribute(args[0], args[1]))
    name, module = _name_of(target)
    args, kwargs = _without_defaults(target, args, kwargs)
    return Found(function(name, args, kwargs), module)


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
    importable = path.startswith(f"{owner}.") and not owner.startswith("torch._C")
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
