"""Leaf modules of torch.nn in a graph: kept as constructor arguments and state, rebuilt and checked.

A graph captured with modules left whole (`symbolic_trace`) calls objects. One can be kept as data if its
class lives in torch.nn and building it again from attributes of the same names gives the same module.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch

from torchrepro.graph_text import resolver
from torchrepro.nouns.errors import CannotSerialise, GraphTextError, class_path
from torchrepro.torch_api.modules import has_forward_hooks

_PLACEMENT = frozenset({"device", "dtype"})


def leaf_module_arguments(path: str, module: torch.nn.Module) -> tuple[str, dict[str, Any]]:
    """Return the public path of the module's class and the arguments that build it again."""
    type_ = type(module)
    public_path = f"torch.nn.{type_.__name__}"
    if getattr(torch.nn, type_.__name__, None) is not type_:
        raise CannotSerialise(
            f"the graph calls {path}, a {class_path(type_)} that is no class of torch.nn",
            next_step="capture the model with torch.compile, which inlines modules",
        )
    if has_forward_hooks(module) or torch.nn.utils.parametrize.is_parametrized(module):
        raise CannotSerialise(
            f"the graph calls {path}, a {public_path} with hooks",
            next_step="capture the model with torch.compile",
        )
    arguments = _arguments(module)
    try:
        difference = _difference(module, type_(**arguments))
    except Exception as failure:
        difference = str(failure)  # a constructor can raise anything
    if difference:
        raise CannotSerialise(
            f"the graph calls {path}, a {public_path} that cannot be built again from its attributes"
            f" ({difference})",
            next_step="capture the model with torch.compile, which inlines modules",
        )
    return public_path, arguments


def build_leaf_module(path: str, arguments: dict[str, Any]) -> torch.nn.Module:
    """Build a module of a class of torch.nn on the meta device: its state comes from the bundle."""
    name = path.removeprefix("torch.nn.")
    type_ = getattr(torch.nn, name, None) if resolver.IDENTIFIER.match(name) else None
    if not isinstance(type_, type) or not issubclass(type_, torch.nn.Module):
        raise GraphTextError(f"{path} is no module of torch.nn", next_step="only those can be kept as data")
    try:
        return type_(**arguments)
    except (TypeError, ValueError, RuntimeError) as failure:
        raise GraphTextError(
            f"{path} does not take these arguments: {failure}", next_step="correct them"
        ) from None


def _arguments(module: torch.nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, parameter in _parameters(type(module)).items():
        if name in _PLACEMENT or not hasattr(module, name):
            continue
        value = getattr(module, name)
        if name == "bias" and not isinstance(value, bool):
            value = value is not None  # `bias` is a flag of the constructor, but a parameter of the module
        default = parameter.default
        comparable = type(value) is type(default) and not isinstance(value, torch.Tensor)
        if not (value is default or (comparable and value == default)):
            found[name] = value
    return found


def _parameters(type_: type) -> dict[str, inspect.Parameter]:
    """Return the constructor's parameters; its base's where it forwards all (`GRU(*args, **kwargs)`)."""
    own = inspect.signature(type_).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in own.values()):
        inherited = inspect.signature(type_.__mro__[1]).parameters
        return {name: parameter for name, parameter in inherited.items() if name not in ("self", "mode")}
    return dict(own)


def _difference(module: torch.nn.Module, rebuilt: torch.nn.Module) -> str:
    if module.extra_repr() != rebuilt.extra_repr():
        return f"it says {module.extra_repr()} and would be {rebuilt.extra_repr()}"
    state, other = module.state_dict(), rebuilt.state_dict()
    if state.keys() != other.keys():
        return f"its state has {sorted(state)} and would have {sorted(other)}"
    for name, tensor in state.items():
        if tensor.shape != other[name].shape:
            return f"{name} is of shape {tuple(tensor.shape)} and would be {tuple(other[name].shape)}"
    return ""
