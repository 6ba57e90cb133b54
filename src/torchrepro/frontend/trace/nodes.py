"""Nodes: which tensors, arguments and operations a graph takes, and how a function is written in it.

What a graph does not take is a break that names it. Operators are functions of `operator` (`x + 1`),
attributes are `getattr`, methods are called by name, and everything else is the function itself: the level of
torch's own captured graphs, which every backend takes.
"""

from __future__ import annotations

import enum
import keyword
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.trace.fakes import is_fake, tensors_in
from torchrepro.torch_api.function_names import OF_AUTOGRAD, READS_VALUES, REFUSED
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket
from torchrepro.torch_api.tensors import is_functional, is_in_transform

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


def check_result(tensor: torch.Tensor, operation: str) -> None:
    """Raise `Break` where an operation's result is not a fake of the kind that graphs take."""
    if not is_fake(tensor):
        raise Break(BreakKind.UNSUPPORTED, f"{operation} gives a tensor that is no plain fake (torch.func?)")
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise Break(BreakKind.UNSUPPORTED, f"{operation} gives a tensor of layout {tensor.layout}")


RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def check_operation(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Raise `Break` for an operation that must not run on fakes."""
    if name in READS_VALUES:
        raise Break(BreakKind.DATA, f"{name}: {READS_VALUES[name]}")
    if getattr(function, "__name__", "") in ("__set__", "__delete__"):
        raise Break(BreakKind.UNSUPPORTED, f"assignment to the attribute {name} of a tensor")
    if name in ("grad", "grad_fn") and getattr(function, "__name__", "") == "__get__":
        if function(*args) is not None:
            raise Break(BreakKind.UNSUPPORTED, f"{name} of a tensor: {OF_AUTOGRAD}")
        return
    if name in RECURRENT and torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(args)):
        raise Break(BreakKind.UNSUPPORTED, f"the backward of {name} is more than AOT compilers can follow")
    if name in REFUSED:
        raise Break(BreakKind.UNSUPPORTED, f"{name}: {REFUSED[name]}")
    if name == "requires_grad_":
        wanted = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
        if args[0].requires_grad != wanted:
            raise Break(BreakKind.UNSUPPORTED, "requires_grad_ changes which gradients exist")
    elif kwargs.get("requires_grad"):
        raise Break(BreakKind.UNSUPPORTED, f"{name} makes a new leaf (requires_grad=True)")
    if any(map(keyword.iskeyword, kwargs)):
        raise Break(
            BreakKind.UNSUPPORTED, f"{name} has a keyword of Python as a parameter", "give it by place"
        )
    if kwargs.get("generator") is not None:
        raise Break(
            BreakKind.UNSUPPORTED,
            f"{name} draws from a generator of its own",
            "without generator= the compilers know how to draw",
        )
    if name in ("tensor", "as_tensor", "asarray") and next(tensors_in(args[:1]), None) is not None:
        if not isinstance(args[0], torch.Tensor):
            raise Break(BreakKind.DATA, f"torch.{name} of tensors among numbers", "torch.stack takes tensors")
        if name != "as_tensor":
            raise Break(BreakKind.UNSUPPORTED, f"torch.{name} of a tensor", "write x.detach().clone()")


_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""What torch takes Python's types for, as in `x.to(float)`. FX cannot write them."""


def as_argument(value: Any, node_of: Callable[[torch.Tensor], Any], operation: str) -> Any:
    """Return a value as a node's argument: a tensor's node, or data that has a text form; break otherwise."""
    if isinstance(value, torch.Tensor):
        return node_of(value)
    if value is None or value is ... or type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, type) and value in _DTYPES:
        return _DTYPES[value]
    if type(value).__name__ == "tensortype":  # x.type(torch.FloatTensor)
        return f"{value.__module__}.{value.__name__}"
    if isinstance(value, dict):
        return {
            as_argument(key, node_of, operation): as_argument(item, node_of, operation)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [as_argument(item, node_of, operation) for item in value]
    if isinstance(value, tuple):  # sizes and named tuples too: torch takes any sequence
        return tuple(as_argument(item, node_of, operation) for item in value)
    if isinstance(value, slice):
        return slice(
            *(as_argument(part, node_of, operation) for part in (value.start, value.stop, value.step))
        )
    if isinstance(value, range | torch.qscheme):
        return value
    if isinstance(value, enum.Enum) and type(value).__module__.split(".")[0] == "torch":
        return value  # FX can write Python's enums, but not those of a C++ binding
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    kind = type(value)
    raise Break(
        BreakKind.UNSUPPORTED,
        f"{operation} is given an argument of type {kind.__module__}.{kind.__qualname__}",
    )


def is_plain(value: Any) -> bool:
    """Return whether a result without tensors is a constant that Python code can use."""
    if isinstance(value, tuple | list):
        return all(is_plain(item) for item in value)
    if value is None or value is NotImplemented or isinstance(value, _PLAIN):
        return True
    return isinstance(value, torch.qscheme | torch.finfo | torch.iinfo) or is_fake(value)


# How a function is written in the graph

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
