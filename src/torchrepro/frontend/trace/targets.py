"""Targets: how a torch function that was seen stands in a graph. One form each, which every backend takes.

Operators as functions of `operator` (`x + 1`, `1 - x`, `x[0]`), attributes as `getattr`, methods by name, and
everything else as the function itself: the level of torch's own captured graphs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket

_OWNERS = ("Tensor", "TensorBase", "_TensorBase")

_SAME = ("add", "sub", "mul", "matmul", "pow", "lt", "le", "gt", "ge", "eq", "ne")
_BINARY: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in _SAME},
    "div": operator.truediv,
    "remainder": operator.mod,
    **{f"__{name}__": getattr(operator, f"__{name}__") for name in ("eq", "ne", "and", "or", "xor", "pow")},
    **{f"__{name}__": getattr(operator, name) for name in ("floordiv", "lshift", "rshift", "getitem")},
}
"""By the names under which a mode is handed them: `x / y` arrives as `div`, `x == y` as `__eq__`."""
_REVERSED: Mapping[str, Callable[..., Any]] = {
    "__rdiv__": operator.truediv,
    **{
        f"__r{name}__": getattr(operator, f"__{name}__")
        for name in (
            "sub",
            "truediv",
            "floordiv",
            "mod",
            "pow",
            "matmul",
            "lshift",
            "rshift",
            "and",
            "or",
            "xor",
        )
    },
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
    """Checked on torch 2.11 to 2.15: what a `TorchFunctionMode` is handed for operators and attributes."""
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
        # Of two tensors Python asks the left one, which may compute something else than the right one would.
        if len(args) == 2 and name in _REVERSED and not isinstance(args[1], torch.Tensor):
            return Form("call_function", _REVERSED[name], (args[1], args[0]))
        if len(args) == 1 and name in _UNARY:
            return Form("call_function", _UNARY[name], args)
        if name == "__setitem__":
            return Form("call_function", operator.setitem, args)
    return Form("call_method", name, args)
