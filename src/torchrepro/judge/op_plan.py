"""What the reference run has to know about an op: decided once for each op, from its schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from torchrepro.judge.float64_forms import float64_form
from torchrepro.judge.randomness import is_composite, is_random_op
from torchrepro.torch_api.ops import custom_op_definition

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class OpPlan:
    """How one op is run in float64."""

    composite: bool
    """A sequence of other ops: let them come one by one."""
    untouched: bool
    """A view, or an op on storages: a view of a narrow tensor stays narrow, so that it stays a view."""
    reinterprets_bits: bool
    random: bool
    returns_tensors: bool
    writes: frozenset[int | str]
    """Arguments written to, by position and by name."""
    returned_arguments: tuple[tuple[int, int | str], ...]
    """(position in the results, argument) of each result that is an argument written to."""
    half_to_float: int | None
    """The position of the flag with which a softmax says that it widens; there is nothing left to widen."""
    form: Callable[..., Any] | None


@lru_cache(maxsize=4096)
def plan_of(func: Any) -> OpPlan:
    schema = func._schema
    written = [
        (i, item)
        for i, item in enumerate(schema.arguments)
        if item.alias_info is not None and item.alias_info.is_write
    ]
    returned: list[tuple[int, int | str]] = []
    for position, item in enumerate(schema.returns):
        if item.alias_info is None or not item.alias_info.is_write:
            continue
        for i, argument in written:
            if argument.alias_info.before_set == item.alias_info.before_set:
                returned.append((position, argument.name if argument.kwarg_only else i))
    views = any(item.alias_info is not None and not item.alias_info.is_write for item in schema.returns)
    names = [item.name for item in schema.arguments]
    return OpPlan(
        composite=is_composite(func),
        untouched=(views and func is not aten.lift_fresh.default and func is not aten.view.dtype)
        or any("Storage" in str(item.type) for item in schema.arguments),
        reinterprets_bits=func is aten.view.dtype,
        random=is_random_op(func),
        returns_tensors=any("Tensor" in str(item.type) for item in schema.returns),
        writes=frozenset([*(i for i, _ in written), *(item.name for _, item in written)]),
        returned_arguments=tuple(returned),
        half_to_float=names.index("half_to_float") if "half_to_float" in names else None,
        form=float64_form(func),
    )


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """The default dtype is process-wide, so it is changed for single ops only and always put back."""
    before = torch.get_default_dtype()
    if before is dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def python_body_of(func: Any) -> Callable[..., Any] | None:
    """The function of a `torch.library.custom_op`, whose casts are to be rewritten too.

    None for every other op, and where another body is registered for a device. Checked on torch 2.11 to 2.15.
    """
    if func.namespace in ("aten", "prims"):
        return None
    definition = custom_op_definition(func._schema.name)
    if definition is None or set(definition._backend_fns) - {None}:
        return None
    body: Callable[..., Any] = definition._init_fn
    return body
