"""Operators, as nodes of a graph call them.

Each name was checked on torch 2.11 to 2.15.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
import torch._decomp
import torch._library.custom_ops
import torch._ops

OpOverload = torch._ops.OpOverload
"""One overload of an operator, the target of a node after AOT."""

OpOverloadPacket = torch._ops.OpOverloadPacket
"""All overloads of an operator (`torch.ops.aten.add`)."""

HigherOrderOperator = torch._ops.HigherOrderOperator
"""An operator that takes graphs (`cond`, `scan`, flex attention)."""

CustomOpDef = torch._library.custom_ops.CustomOpDef
"""What `torch.library.custom_op` returns."""

OpNamespace = torch._ops._OpNamespace
"""The operators of one library (`torch.ops.aten`)."""

higher_order_operators: dict[str, Any] = torch._ops._higher_order_ops
"""Every registered higher-order operator by name."""

DispatchKey = torch._C.DispatchKey
"""Where an operator has kernels."""


has_kernel: Callable[[str, Any], bool] = torch._C._dispatch_has_kernel_for_dispatch_key
"""Whether the operator of this name has a kernel for a key."""


def registered_schema(qualified: str, overload: str) -> str | None:
    """Return the schema of a registered operator, None if there is none (`_get_schema`)."""
    try:
        return str(torch._C._get_schema(qualified, overload))
    except RuntimeError:
        return None


schema_of: Callable[[Any], Any] = attrgetter("_schema")
"""The schema of an overload: arguments, returns, aliases."""

overload_name: Callable[[Any], str] = attrgetter("_overloadname")
"""The last part of an overload's name, `Tensor` for `aten.add.Tensor`."""

qualified_name: Callable[[Any], str] = attrgetter("_qualified_op_name")
"""The name of an operator with its namespace, `aten::add`."""

parse_schema: Callable[[str], Any] = torch._C.parse_schema
"""Return a schema as an object."""


registrations_of: Callable[[str], str] = torch._C._dispatch_dump
"""Torch's record of an operator's registrations and their origins."""

custom_op_definition: Callable[[str], Any] = torch._library.custom_ops.OPDEFS.get
"""The object that `torch.library.custom_op` made; None for other operators."""


def body_of(definition: Any) -> Callable[..., Any]:
    """Return the function passed to `torch.library.custom_op` (`_init_fn`)."""
    body: Callable[..., Any] = definition._init_fn
    return body


def device_bodies(definition: Any) -> dict[str | None, Callable[..., Any]]:
    """Return the functions of a custom operator by kind of device, None for all (`_backend_fns`)."""
    return dict(definition._backend_fns)


def registered_functions(definition: Any) -> dict[str, Any]:
    """Return what is registered for a custom operator in addition to kernels; None for what is not.

    `_abstract_fn`, `_backward_fn`, `_setup_context_fn`.
    """
    return {
        "fake": definition._abstract_fn,
        "backward": definition._backward_fn,
        "setup_context": definition._setup_context_fn,
    }


def is_traced_into(definition: Any) -> bool:
    """Return whether tracing enters the body of a custom operator, a `triton_op` (`_torch_dispatch_fns`)."""
    return bool(definition._torch_dispatch_fns)


def registry_entry(name: str) -> Any:
    """Return what is registered for an operator: fake kernels, effects (`simple_registry`)."""
    from torch._library import simple_registry

    return simple_registry.singleton.find(name)


def effects_operator() -> Any:
    """Return the operator that keeps effects in order (`with_effects`)."""
    from torch._higher_order_ops.effects import with_effects

    return with_effects


def kernel_side_table() -> Any:
    """Return the table of the user's Triton kernels, by the numbers that graphs have."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_side_table


def decomposition_of(op: Any) -> Callable[..., Any] | None:
    """Return torch's decomposition of an operator, or None (`decomposition_table`)."""
    found: Callable[..., Any] | None = torch._decomp.decomposition_table.get(op)
    return found


def undispatched(function: Any) -> Any:
    """Return a function with the signature that a caller of `function` sees: `F.max_pool2d` hides its own.

    Run on torch 2.13; 2.11 and 2.15 have the same (`boolean_dispatched`: one function with indices, one
    without, equal parameters).
    """
    from torch import _jit_internal

    found = getattr(_jit_internal, "boolean_dispatched", {}).get(function)
    return found["if_true"] if found is not None else function


def op_name(target: Any) -> str:
    """Return the name of a target without namespace and overload: `add` for `aten.add.Tensor`, `x.add`."""
    if isinstance(target, OpOverload):
        return str(target._schema.name.partition("::")[2])
    return str(target if isinstance(target, str) else getattr(target, "__name__", target))


def plain_op_name(name: str) -> str:
    """Return the plain name in an op's text: `erf` for `aten.erf.default`, `aten::erf`, `.erf_`."""
    last = name.rpartition("::")[2].removeprefix("torch.ops.")
    parts = [part for part in last.split(".") if part]
    if len(parts) > 1 and parts[0] in ("aten", "prims", "quantized"):
        last = parts[1]
    elif parts:
        last = parts[-1]
    return last.strip("_") or last
