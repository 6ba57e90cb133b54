"""Private attributes of `torch.nn.Module` and of the wrappers that `torch.compile` makes.

Each name was checked on torch 2.11 to 2.15.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from torchrepro.torch_api.names import BACKENDS_COMMON, MUTATION_GUARD, WRAPPER_MARKS


class OwnState(NamedTuple):
    """The tables of one module, without its children's. Writing to a table changes the module."""

    parameters: dict[str, torch.nn.Parameter | None]
    buffers: dict[str, torch.Tensor | None]
    modules: dict[str, torch.nn.Module | None]
    temporary: set[str]
    """Names of buffers that `state_dict` leaves out."""


def own_state(module: torch.nn.Module) -> OwnState:
    """Return the tables (`_parameters`, `_buffers`, `_modules`, `_non_persistent_buffers_set`)."""
    return OwnState(module._parameters, module._buffers, module._modules, module._non_persistent_buffers_set)


def has_forward_hooks(module: torch.nn.Module) -> bool:
    """Return whether hooks run around `forward` (`_forward_hooks`, `_forward_pre_hooks`)."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def compiled_call(module: Any) -> Any:
    """Return the function that `module.compile()` made to replace `forward`, or None.

    `_compiled_call_impl`.
    """
    return getattr(module, "_compiled_call_impl", None)


def compiled_module(wrapper: Any) -> Any:
    """Return the module that `torch.compile` wrapped; None for anything else (`_orig_mod`)."""
    return getattr(wrapper, "_orig_mod", None)


def compiled_function(wrapper: Any) -> Any:
    """Return the function that `torch.compile` wrapped; else None (`_torchdynamo_orig_callable`)."""
    return getattr(wrapper, "_torchdynamo_orig_callable", None)


def wrapped_backend(backend: Any) -> Any:
    """Return the backend that torch wrapped; None if it is not wrapped (`_torchdynamo_orig_backend`)."""
    return getattr(backend, "_torchdynamo_orig_backend", None)


def backend_as_made(backend: Any) -> Any:
    """Return what `aot_autograd(...)` made, without the compilers that its calls put into it.

    A call keeps a wrapped compiler for the backward graph, whose only name is in its closure, and one for
    inference (`AotAutograd.kwargs`, `_is_wrapped_bw_compiler`, `bw_compiler_fn`). Other backends are
    returned as they are.
    """
    kind = type(backend)
    if (kind.__module__, kind.__qualname__) != (BACKENDS_COMMON, "AotAutograd"):
        return backend
    made = dict(backend.kwargs)
    while getattr(made.get("bw_compiler"), "_is_wrapped_bw_compiler", False):
        made["bw_compiler"] = inspect.getclosurevars(made["bw_compiler"]).nonlocals["bw_compiler_fn"]
    for name in ("bw_compiler", "inference_compiler"):
        if made.get(name) is made["fw_compiler"]:
            del made[name]
    return kind(**made)


def dynamic_of(context: Any) -> bool | None:
    """Return the argument `dynamic` of `torch.compile` (`_dynamic`)."""
    found: bool | None = context._dynamic
    return found


def before_load_state_dict(module: torch.nn.Module, hook: Callable[..., None]) -> None:
    """Register a hook on the keys that `load_state_dict` gets (`_register_load_state_dict_pre_hook`)."""
    module._register_load_state_dict_pre_hook(hook)


def mark_wrapper(function: Any) -> None:
    """Mark a function as the wrapper of a compiled one, for Dynamo (`_torchdynamo_wrapper_id`)."""
    function._torchdynamo_wrapper_id = id(function)


def original_of(function: Any) -> Callable[..., Any] | torch.nn.Module | None:
    """Return what `torch.compile` or `torch.jit.script` wraps, which is traced; None for other functions.

    Checked on torch 2.11 to 2.15 (`_torchdynamo_orig_callable`, `_torchdynamo_inline`, `_orig_mod`,
    `__original_fn`).
    """
    if isinstance(function, torch.nn.Module):
        return compiled_module(function) if type(function).__name__ == "OptimizedModule" else None
    if getattr(function, "__module__", None) == MUTATION_GUARD:
        # Dynamo, once used, wraps methods of modules to track new modules; trace the wrapped method.
        cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
        return next((inner for inner in cells if isinstance(inner, types.FunctionType)), None)
    if getattr(function, "_torchdynamo_disable", False) is True:
        return None
    if isinstance(function, torch.jit.ScriptFunction):
        found = getattr(function, "_torchdynamo_inline", None)
    else:
        # By the code: `functools.wraps` copies the attributes to a decorator's own function.
        home = getattr(function, "__globals__", {}).get("__name__")
        found = getattr(function, WRAPPER_MARKS[home], None) if home in WRAPPER_MARKS else None
    return found if callable(found) else None
