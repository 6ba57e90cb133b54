"""Constants: values of which equal ones are the same to any program, so that a guard on equality will do."""

from __future__ import annotations

import enum
import re
import types
from typing import Any

import torch

SIMPLE = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        range,
        type(...),
        type(NotImplemented),
        types.CodeType,
        torch.dtype,
        torch.device,
        torch.layout,
        torch.memory_format,
        torch.Size,
    }
)
"""Compared as a whole."""

NESTED = frozenset({tuple, frozenset})

BY_IDENTITY = (
    type,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    re.Pattern,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
)
"""There is one of each, for as long as the program runs."""


def is_constant(value: Any) -> bool:
    kind = type(value)
    if kind in SIMPLE:
        return True
    if kind in NESTED:
        return all(map(is_constant, value))
    if kind is slice:
        return is_constant(value.start) and is_constant(value.stop) and is_constant(value.step)
    return isinstance(value, enum.Enum)


def is_single(value: Any) -> bool:
    """Whether the object itself can be held and guarded by identity."""
    if isinstance(value, types.BuiltinFunctionType):
        owner = value.__self__
        if owner is None or isinstance(owner, type | types.ModuleType):
            return True
        return type(owner).__module__.startswith(
            "pybind11"
        )  # a function of a module, bound to its own record
    return isinstance(value, BY_IDENTITY)
