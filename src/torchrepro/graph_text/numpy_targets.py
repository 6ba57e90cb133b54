"""NumPy in a graph: Dynamo traces `np.sin(x)` as an object that wraps torch's own version of the function.

The objects have no name of their own; text names what they wrap: `numpy_function("linalg.norm")(x)`.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torchrepro.graph_text.allowed import REFUSED
from torchrepro.nouns.errors import GraphTextError
from torchrepro.torch_api import dynamo

WORDS = ("numpy_function", "numpy_method", "numpy_operator")
_MODULES = {
    "": "torch._numpy",
    "linalg": "torch._numpy.linalg",
    "fft": "torch._numpy.fft",
    "random": "torch._numpy.random",
}


def numpy_target(target: Any) -> tuple[str, str] | None:
    """The word and the name for a wrapper of Dynamo, None for others. Checked on torch 2.11 to 2.15."""
    if type(target).__module__ != "torch._dynamo.utils":
        return None
    match type(target).__name__:
        case "numpy_to_tensor_wrapper":
            return "numpy_function", _function_name(target.f)
        case "numpy_method_wrapper":
            return "numpy_method", target.method
        case "numpy_operator_wrapper":
            return "numpy_operator", target.op.__name__
    return None


def build_numpy_target(word: str, name: str) -> Callable[..., Any]:
    """The wrapper that a word and a name stand for. Checked on torch 2.11 to 2.15."""
    made: Callable[..., Any]
    if word == "numpy_function":
        made = dynamo.numpy_wrappers.numpy_to_tensor_wrapper(_function(name))
        return made
    if word == "numpy_method":
        method = (
            None
            if name.startswith("_")
            else getattr(getattr(dynamo.torch_numpy, "ndarray", None), name, None)
        )
        if not callable(method):
            raise GraphTextError(f"numpy arrays have no method {name} in torch", next_step="remove the node")
        made = dynamo.numpy_wrappers.numpy_method_wrapper(name)
        return made
    function = None if name.startswith("__") or name in REFUSED["operator"] else getattr(operator, name, None)
    if not isinstance(function, BuiltinFunctionType):
        raise GraphTextError(f"operator has no function {name} for arrays", next_step="remove the node")
    made = dynamo.numpy_wrappers.numpy_operator_wrapper(function)
    return made


def _function_name(function: Any) -> str:
    for prefix, module in _MODULES.items():
        name = getattr(function, "__name__", "")
        if getattr(sys.modules.get(module), name, None) is function:
            return f"{prefix}.{name}" if prefix else name
    return getattr(function, "__name__", "unknown")


def _function(name: str) -> Any:

    prefix, _, last = name.rpartition(".")
    module = sys.modules.get(_MODULES.get(prefix, ""))
    found = None if module is None or last.startswith("_") else getattr(module, last, None)
    # Universal functions are objects; all others are functions that torch._numpy defines.
    own = isinstance(found, FunctionType) or type(found).__module__.startswith("torch._numpy")
    if (
        not own
        or isinstance(found, type)
        or not str(getattr(found, "__module__", "")).startswith("torch._numpy")
    ):
        raise GraphTextError(f"torch has no version of numpy.{name}", next_step="remove the node")
    return found
