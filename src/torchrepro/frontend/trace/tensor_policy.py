"""Which tensors, arguments and operations a graph takes. What it does not take is a break that names it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.trace.fakes import is_fake, tensors_in
from torchrepro.torch_api.tensors import is_functional, is_in_transform

_KINDS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)

_READS_VALUES = {
    "numpy": "NumPy works on the data of a tensor",
    "__array__": "NumPy works on the data of a tensor",
    "__array_wrap__": "NumPy works on the data of a tensor",
    "__dlpack__": "another library works on the data of a tensor",
    "__repr__": "printing a tensor needs its values",
    "__str__": "printing a tensor needs its values",
    "__format__": "printing a tensor needs its values",
    "tolist": "numbers of Python are made of the values of a tensor",
}
"""Methods that fakes answer, or refuse with an error of another kind."""

_OF_AUTOGRAD = "gradients are computed outside of graphs"
_OF_MEMORY = "a graph has no memory of its own to look at"
_OF_METADATA = "it changes what a tensor is, not what it holds"
_OF_PYTHON = "it runs code that the graph cannot hold"
_QUANTIZED = "a fake of what it gives would not be quantized"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("backward", "grad", "retain_grad", "register_hook", "grad_fn"), _OF_AUTOGRAD),
    **dict.fromkeys(("register_post_accumulate_grad_hook", "_backward_hooks"), _OF_AUTOGRAD),
    **dict.fromkeys(("_grad", "_grad_fn", "_post_accumulate_grad_hooks"), _OF_AUTOGRAD),
    **dict.fromkeys(("data_ptr", "untyped_storage", "storage"), _OF_MEMORY),
    **dict.fromkeys(
        (
            "_typed_storage",
            "storage_type",
            "share_memory_",
            "is_shared",
            "is_set_to",
            "is_pinned",
            "_is_view",
            "_version",
            "_base",
            "_cdata",
        ),
        _OF_MEMORY,
    ),
    **dict.fromkeys(("set_", "resize_", "resize_as_", "resize", "resize_as", "detach_"), _OF_METADATA),
    **dict.fromkeys(("as_subclass", "_make_subclass", "rename_", "swap_tensors"), _OF_METADATA),
    **dict.fromkeys(("apply_", "map_", "map2_", "__deepcopy__", "__reduce_ex__", "__setstate__"), _OF_PYTHON),
    **dict.fromkeys(
        ("quantize_per_tensor", "quantize_per_tensor_dynamic", "quantize_per_channel"), _QUANTIZED
    ),
    **dict.fromkeys(("from_file", "save", "from_dlpack", "frombuffer", "set_printoptions"), _OF_PYTHON),
}
"""Functions, methods and attributes by name, with the reason."""


def why_not_in_graph(tensor: torch.Tensor) -> str | None:
    """Why a real tensor cannot be an input; None for an ordinary tensor, parameter or buffer."""
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
    return _wrapper(tensor)


def _wrapper(tensor: torch.Tensor) -> str | None:
    """Checked on torch 2.11 to 2.15 (`torch._C._functorch`, `torch._is_functional_tensor`)."""
    if is_in_transform(tensor):
        return "a tensor inside a transform of torch.func"
    if is_functional(tensor):
        return "a functional tensor of a compiler"
    return None


def check_result(tensor: torch.Tensor, operation: str) -> None:
    """What an operation gave must be a fake of the kind that graphs take."""
    if not is_fake(tensor):
        raise Break(BreakKind.UNSUPPORTED, f"{operation} gives a tensor that is no plain fake (torch.func?)")
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise Break(BreakKind.UNSUPPORTED, f"{operation} gives a tensor of layout {tensor.layout}")


RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def check_operation(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Break for an operation that must not run on fakes."""
    if name in _READS_VALUES:
        raise Break(BreakKind.DATA, f"{name}: {_READS_VALUES[name]}")
    if getattr(function, "__name__", "") in ("__set__", "__delete__"):
        raise Break(BreakKind.UNSUPPORTED, f"assignment to the attribute {name} of a tensor")
    if name in ("grad", "grad_fn") and getattr(function, "__name__", "") == "__get__":
        if function(*args) is not None:
            raise Break(BreakKind.UNSUPPORTED, f"{name} of a tensor: {_OF_AUTOGRAD}")
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
    """A value as an argument of a node: the node of a tensor, data that text can hold; a break otherwise."""
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
    if isinstance(value, range | torch.qscheme) or _is_enum_of_torch(value):
        return value
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    kind = type(value)
    raise Break(
        BreakKind.UNSUPPORTED,
        f"{operation} is given an argument of type {kind.__module__}.{kind.__qualname__}",
    )


def is_plain(value: Any) -> bool:
    """Whether a result without tensors is a constant that Python code can go on with."""
    if isinstance(value, tuple | list):
        return all(is_plain(item) for item in value)
    if value is None or value is NotImplemented or isinstance(value, _PLAIN):
        return True
    return isinstance(value, torch.qscheme | torch.finfo | torch.iinfo) or is_fake(value)


def _is_enum_of_torch(value: object) -> bool:
    """FX can write those of Python; those of a C++ binding it cannot."""
    return isinstance(value, enum.Enum) and type(value).__module__.split(".")[0] == "torch"
