"""Targets: how a torch function that was seen stands in a graph. One form each, which every backend takes.

Operators as functions of `operator` (`x + 1`, `1 - x`, `x[0]`), attributes as `getattr`, methods by name, and
everything else as the function itself: the level of torch's own captured graphs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch._ops import OpOverload, OpOverloadPacket

_OWNERS = ("Tensor", "TensorBase", "_TensorBase")

_BINARY: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "matmul": operator.matmul,
    "pow": operator.pow,
    "remainder": operator.mod,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "__eq__": operator.eq,
    "__ne__": operator.ne,
    "__floordiv__": operator.floordiv,
    "__pow__": operator.pow,
    "__and__": operator.and_,
    "__or__": operator.or_,
    "__xor__": operator.xor,
    "__lshift__": operator.lshift,
    "__rshift__": operator.rshift,
    "__getitem__": operator.getitem,
}
_REVERSED: Mapping[str, Callable[..., Any]] = {
    "__rsub__": operator.sub,
    "__rdiv__": operator.truediv,
    "__rtruediv__": operator.truediv,
    "__rfloordiv__": operator.floordiv,
    "__rmod__": operator.mod,
    "__rpow__": operator.pow,
    "__rmatmul__": operator.matmul,
    "__rlshift__": operator.lshift,
    "__rrshift__": operator.rshift,
    "__rand__": operator.and_,
    "__ror__": operator.or_,
    "__rxor__": operator.xor,
}
_UNARY: Mapping[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "__neg__": operator.neg,
    "__invert__": operator.invert,
    "__pos__": operator.pos,
}


@dataclass(frozen=True, slots=True)
class Form:
    op: str
    """`call_function` or `call_method`."""
    target: Callable[..., Any] | str
    args: tuple[Any, ...]


def name_of(function: Callable[..., Any]) -> str:
    """What a reader calls it: `add`, `shape` (for an attribute), `aten.relu`."""
    if isinstance(function, OpOverload | OpOverloadPacket):
        return str(function)
    name = str(getattr(function, "__name__", function))
    if name in ("__get__", "__set__", "__delete__"):
        return str(getattr(getattr(function, "__self__", None), "__name__", name))
    return name


def form_of(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Form:
    """Checked on torch 2.11 to 2.13: what a `TorchFunctionMode` is handed for operators and attributes."""
    if isinstance(function, OpOverload | OpOverloadPacket):
        return Form("call_function", function, args)
    name = name_of(function)
    if getattr(function, "__name__", "") == "__get__":
        return Form("call_function", getattr, (args[0], name))
    if str(getattr(function, "__qualname__", "")).split(".")[0] not in _OWNERS:
        return Form("call_function", function, args)
    if not kwargs:
        if len(args) == 2 and name in _BINARY:
            return Form("call_function", _BINARY[name], args)
        if len(args) == 2 and name in _REVERSED:
            return Form("call_function", _REVERSED[name], (args[1], args[0]))
        if len(args) == 1 and name in _UNARY:
            return Form("call_function", _UNARY[name], args)
        if name == "__setitem__":
            return Form("call_function", operator.setitem, args)
    return Form("call_method", name, args)
