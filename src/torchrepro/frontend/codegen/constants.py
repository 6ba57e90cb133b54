"""Constants: values that generated code writes down or holds, as no call can tell one copy from another."""

from __future__ import annotations

import enum
import math
import numbers
import re
import types
from typing import Any

import torch

from torchrepro.frontend.codegen.writer import LITERALS
from torchrepro.frontend.raw_access import is_a

LONGEST_INT = 2**256
"""Beyond it an integer is held: Python refuses to write very long ones as text."""

GLOBAL_OBJECTS = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.CodeType,
    types.GenericAlias,
    types.UnionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    type(NotImplemented),
    enum.Enum,
    re.Pattern,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.finfo,
    torch.iinfo,
)
"""Immutable, or one of a kind: without a source they are the same object on every call."""

NUMBER_LIBRARIES = frozenset({"builtins", "decimal", "fractions", "numpy"})


def literal(value: Any) -> str | None:
    """The text of a value that Python has a literal for."""
    kind = type(value)
    if kind is int and abs(value) > LONGEST_INT:
        return None
    if kind is float and math.isfinite(value):
        return repr(value)
    if kind in LITERALS:
        return "..." if value is ... else repr(value)
    return None


def is_constant(value: Any) -> bool:
    """An immutable value, all through. Sharing one object between calls is not seen (but by `is`)."""
    kind = type(value)
    if kind in LITERALS or kind is range:
        return True
    if kind in (tuple, frozenset, torch.Size):
        return all(map(is_constant, value))
    if kind is slice:
        return all(map(is_constant, (value.start, value.stop, value.step)))
    return issubclass(kind, numbers.Number) and kind.__module__ in NUMBER_LIBRARIES


def is_global_object(value: Any) -> bool:
    kind = type(value)  # `isinstance` would ask the object, which may lie about its class
    if kind is types.BuiltinFunctionType:
        return value.__self__ is None or is_a(value.__self__, types.ModuleType | type)
    return issubclass(kind, GLOBAL_OBJECTS) or kind.__module__ == "typing"
