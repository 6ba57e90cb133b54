"""The parameters of what a node calls: their names and defaults, from schemas and Python signatures."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from torchrepro.torch_api.ops import OpOverload

REQUIRED: Any = inspect.Parameter.empty
"""The default of a parameter that has none."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an op or a function."""

    name: str
    default: Any = REQUIRED
    by_name_only: bool = False
    optional: bool = False
    """It may be None."""

    @property
    def has_default(self) -> bool:
        return self.default is not REQUIRED


def parameters_of(node: Node) -> tuple[Parameter, ...]:
    """The parameters of the first signature that takes a node's arguments; empty where none is known."""
    for parameters in _signatures(node.op, node.target):
        if _takes(parameters, len(node.args), set(node.kwargs)):
            return parameters
    return ()


def can_be_left_out(node: Node, place: int | str) -> bool:
    """Whether an argument has a default, or another signature does without it and those after it.

    `x.sum(dim=1)` and `x.sum()` are two signatures.
    """
    parameter = parameter_at(parameters_of(node), place)
    if parameter is not None and parameter.has_default:
        return True
    count = place if isinstance(place, int) else len(node.args)
    names = set(node.kwargs) - {place}
    signatures = _signatures(node.op, node.target)
    return any(_takes(each, count, names) or _takes(each, count, set()) for each in signatures)


def parameter_at(parameters: tuple[Parameter, ...], place: int | str) -> Parameter | None:
    """The parameter of a positional argument or of a keyword."""
    if isinstance(place, str):
        return next((parameter for parameter in parameters if parameter.name == place), None)
    positional = [parameter for parameter in parameters if not parameter.by_name_only]
    return positional[place] if place < len(positional) else None


def _takes(parameters: tuple[Parameter, ...], count: int, names: set[str]) -> bool:
    positional = [parameter.name for parameter in parameters if not parameter.by_name_only]
    given = {*positional[:count], *names}
    return (
        count <= len(positional)
        and names <= {parameter.name for parameter in parameters} - set(positional[:count])
        and all(parameter.has_default or parameter.name in given for parameter in parameters)
    )


@functools.cache
def _signatures(op: str, target: Any) -> tuple[tuple[Parameter, ...], ...]:
    return tuple(_found_signatures(op, target))


def _found_signatures(op: str, target: Any) -> Iterator[tuple[Parameter, ...]]:
    if isinstance(target, OpOverload):
        yield _of_schema(target)
        return
    if op == "call_function" and getattr(target, "__module__", "") != "_operator":
        with contextlib.suppress(TypeError, ValueError):  # a builtin: its overloads know
            yield tuple(_of_python(inspect.signature(target)))
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    yield from _of_overloads(name)


def _of_overloads(name: str) -> Iterator[tuple[Parameter, ...]]:
    """The overloads of the op that a function or method of torch has its name from.

    Checked on torch 2.11 to 2.15 (`OpOverloadPacket.overloads`).
    """
    packet = getattr(torch.ops.aten, name, None) if name.isidentifier() else None
    for overload in packet.overloads() if packet is not None else ():
        if overload != "out" and not overload.endswith("_out"):
            yield _of_schema(getattr(packet, overload))


def _of_schema(op: OpOverload) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(
            argument.name,
            argument.default_value if argument.has_default_value() else REQUIRED,
            argument.kwarg_only,
            argument.type.kind() == "OptionalType",
        )
        for argument in op._schema.arguments
    )


def _of_python(signature: inspect.Signature) -> Iterator[Parameter]:
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ValueError("takes any arguments")
        yield Parameter(
            parameter.name,
            parameter.default,
            parameter.kind is parameter.KEYWORD_ONLY,
            parameter.default is None,
        )
