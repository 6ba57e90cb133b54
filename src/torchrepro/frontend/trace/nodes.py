"""Nodes: which arguments and operations a graph takes. What it does not take is a break that names it."""

from __future__ import annotations

import enum
import keyword
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from torchrepro.frontend.graph_breaks import Break, BreakKind, Unsupported
from torchrepro.frontend.trace.fakes import is_fake, tensors_in
from torchrepro.torch_api.function_names import OF_AUTOGRAD, READS_VALUES, REFUSED


def check_result(tensor: torch.Tensor, operation: str) -> None:
    """Raise `Break` where an operation's result is not a fake of the kind that graphs take."""
    if not is_fake(tensor):
        raise Unsupported(f"{operation} gives a tensor that is no plain fake (torch.func?)")
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise Unsupported(f"{operation} gives a tensor of layout {tensor.layout}")


RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def check_operation(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Raise `Break` for an operation that must not run on fakes."""
    if name in READS_VALUES:
        raise Break(BreakKind.DATA, f"{name}: {READS_VALUES[name]}")
    if getattr(function, "__name__", "") in ("__set__", "__delete__"):
        raise Unsupported(f"assignment to the attribute {name} of a tensor")
    if name in ("grad", "grad_fn") and getattr(function, "__name__", "") == "__get__":
        if function(*args) is not None:
            raise Unsupported(f"{name} of a tensor: {OF_AUTOGRAD}")
        return
    if name in RECURRENT and torch.is_grad_enabled() and any(t.requires_grad for t in tensors_in(args)):
        raise Unsupported(f"the backward of {name} is more than AOT compilers can follow")
    if name in REFUSED:
        raise Unsupported(f"{name}: {REFUSED[name]}")
    if name == "requires_grad_":
        wanted = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
        if args[0].requires_grad != wanted:
            raise Unsupported("requires_grad_ changes which gradients exist")
    elif kwargs.get("requires_grad"):
        raise Unsupported(f"{name} makes a new leaf (requires_grad=True)")
    if any(map(keyword.iskeyword, kwargs)):
        raise Unsupported(f"{name} has a keyword of Python as a parameter", "give it by place")
    if kwargs.get("generator") is not None:
        raise Unsupported(
            f"{name} draws from a generator of its own",
            "without generator= the compilers know how to draw",
        )
    if name in ("tensor", "as_tensor", "asarray") and next(tensors_in(args[:1]), None) is not None:
        if not isinstance(args[0], torch.Tensor):
            raise Break(BreakKind.DATA, f"torch.{name} of tensors among numbers", "torch.stack takes tensors")
        if name != "as_tensor":
            raise Unsupported(f"torch.{name} of a tensor", "write x.detach().clone()")


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
    raise Unsupported(
        f"{operation} is given an argument of type {kind.__module__}.{kind.__qualname__}",
    )


def is_plain(value: Any) -> bool:
    """Return whether a result without tensors is a constant that Python code can use."""
    if isinstance(value, tuple | list):
        return all(is_plain(item) for item in value)
    if value is None or value is NotImplemented or isinstance(value, _PLAIN):
        return True
    return isinstance(value, torch.qscheme | torch.finfo | torch.iinfo) or is_fake(value)
