"""Singles: objects of which there is one as long as the program runs; they are guarded by identity."""

from __future__ import annotations

import re
import types
from typing import Any

from torchrepro.frontend.raw_access import is_a
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket

BY_IDENTITY = (
    type,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    re.Pattern,
    OpOverload,
    OpOverloadPacket,
)
"""There is one of each, for as long as the program runs."""


def is_single(value: Any) -> bool:
    """Whether the object itself can be held and guarded by identity."""
    if is_a(value, types.BuiltinFunctionType):
        owner = value.__self__
        if owner is None or is_a(owner, type | types.ModuleType):
            return True
        # A function of a module, which pybind binds to a record of its own.
        return type(owner).__module__.startswith("pybind11")
    return is_a(value, BY_IDENTITY)
