"""Nodes of a captured graph: how a function is written in it, and which tensors it takes.

Operators are functions of `operator` (`x + 1`), attributes are `getattr`, methods are called by name, and
everything else is the function itself: the level of torch's own captured graphs, which every backend takes.
Their code names functions of torch, which `bind_functions` binds.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx.node import _get_qualified_name

from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket
from torchrepro.torch_api.tensors import is_functional, is_in_transform

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def why_not_in_graph(tensor: torch.Tensor) -> str | None:
    """Return why a real tensor cannot be an input; None for an ordinary tensor, parameter or buffer.

    Checked on torch 2.11 to 2.15 (`_functorch`, `_is_functional_tensor`).
    """
    if type(tensor) not in _KINDS:
        kind = type(tensor)
        return f"a tensor of the class {kind.__module__}.{kind.__qualname__}"
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.is_mkldnn:
        return "a tensor in the layout of oneDNN"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout}"
    if tensor.is_quantized:
        return "a quantized tensor"
    if is_in_transform(tensor):
        return "a tensor inside a transform of torch.func"
    if is_functional(tensor):
        return "a functional tensor of a compiler"
    return None


_OWNERS = ("Tensor", "TensorBase", "_TensorBase")

_SAME = ("add", "sub", "mul", "matmul", "pow", "lt", "le", "gt", "ge", "eq", "ne")
_BINARY: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in _SAME},
    "div": operator.truediv,
    "remainder": operator.mod,
    **{f"__{name}__": getattr(operator, f"__{name}__") for name in ("eq", "ne", "and", "or", "xor", "pow")},
    **{f"__{name}__": getattr(operator, name) for name in ("floordiv", "lshift", "rshift", "getitem")},
}
"""By the names under which a mode receives them: `x / y` arrives as `div`, `x == y` as `__eq__`."""
_REVERSIBLE = "sub truediv floordiv mod pow matmul lshift rshift and or xor"
_REVERSED: Mapping[str, Callable[..., Any]] = {
    "__rdiv__": operator.truediv,
    **{f"__r{name}__": getattr(operator, f"__{name}__") for name in _REVERSIBLE.split()},
}
_UNARY: Mapping[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "__neg__": operator.neg,
    "__invert__": operator.invert,
    "__pos__": operator.pos,
}


Form = tuple[str, Callable[..., Any] | str, tuple[Any, ...]]
"""`call_function` or `call_method`, the target, the arguments."""


def name_of(function: Callable[..., Any]) -> str:
    """Return its readable name: `add`, `shape` (for an attribute), `aten.relu`."""
    if isinstance(function, OpOverload | OpOverloadPacket):
        return str(function)
    name = str(getattr(function, "__name__", function))
    if name in ("__get__", "__set__", "__delete__"):
        return str(getattr(getattr(function, "__self__", None), "__name__", name))
    return name


def form_of(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Form:
    """Return how a call is written in the graph.

    Checked on torch 2.11 to 2.15: what a `TorchFunctionMode` is handed for operators and attributes.
    """
    if isinstance(function, OpOverload | OpOverloadPacket):
        return "call_function", function, args
    name = name_of(function)
    if getattr(function, "__name__", "") == "__get__":
        return "call_function", getattr, (args[0], name)
    if str(getattr(function, "__qualname__", "")).split(".")[0] not in _OWNERS:
        return "call_function", function, args
    if not kwargs:
        if len(args) == 2 and name in _BINARY:
            return "call_function", _BINARY[name], args
        # With two tensors Python calls the left one's method, which may compute something else.
        if len(args) == 2 and name in _REVERSED and not isinstance(args[1], torch.Tensor):
            return "call_function", _REVERSED[name], (args[1], args[0])
        if len(args) == 1 and name in _UNARY:
            return "call_function", _UNARY[name], args
        if name == "__setitem__":
            return "call_function", operator.setitem, args
    return "call_method", name, args


class _Names:
    """A module as the code of one graph sees it: what it has read or was given stays as it is."""

    def __init__(self, module: Any) -> None:
        self.__dict__["__wrapped__"] = module

    def __getattr__(self, name: str) -> Any:
        found = self.__dict__[name] = getattr(self.__wrapped__, name)
        return found


def bind_functions(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Bind torch's functions in the code of a graph, where FX writes names that a program may rebind.

    Checked on torch 2.11 to 2.15 (`_get_qualified_name`).
    """
    root = _Names(torch)
    for node in module.graph.nodes:
        if node.op == "call_function" and isinstance(node.target, _FUNCTIONS):
            first, *path = _get_qualified_name(node.target).split(".")
            if first == "torch":
                place = root
                for part in path[:-1]:
                    held = getattr(place, part)
                    place.__dict__[part] = held if isinstance(held, _Names) else _Names(held)
                    place = place.__dict__[part]
                place.__dict__[path[-1]] = node.target
    code: Any = type(module).forward
    code.__globals__["torch"] = root
    return module
