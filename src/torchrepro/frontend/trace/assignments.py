"""Assignments: `object.name = value` and `del object.name`, as Python does it."""

from __future__ import annotations

import types
from typing import Any

import torch

from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace.attributes import Attributes, property_without
from torchrepro.frontend.trace.classes import MISSING, is_python_class, static_lookup


class Assignments(Attributes):
    def store_attr(self, value: Any, name: str, new: Any) -> None:
        if is_a(value, torch.Tensor):
            self.world.set_key(self._tensor_space(value, name), name, new)
            return
        if is_a(value, type | types.ModuleType):
            if not self.world.is_fresh(value):
                raise Break(BreakKind.UNSUPPORTED, f"assignment to attribute {name!r} of {value.__name__}")
            setattr(value, name, new)
            return
        setter = self.lookup(type(value), "__setattr__")
        if _is_plain(setter, "__setattr__"):
            self.plain_store(value, name, new)
        else:
            self.call_function(setter, (value, name, new), {})

    def _tensor_space(self, value: torch.Tensor, name: str) -> dict[str, Any]:
        """Where a tensor keeps a name of the user's. What torch defines (`grad`, `data`) means more."""
        real = self.recorder.real_of(value)
        known = self.recorder.owns(value) and (real is None or self.world.source_of(value) is not None)
        if not known or static_lookup(self.recorder.real_type_of(value), name) is not MISSING:
            raise Break(BreakKind.UNSUPPORTED, f"assignment to attribute {name!r} of a tensor")
        return self.world.instance_of_tensor(value, real)

    def plain_store(self, value: Any, name: str, new: Any) -> None:
        """What `object.__setattr__` does."""
        found = self.lookup(type(value), name)
        if is_a(found, property):
            if found.fset is None:
                raise property_without("setter", type(value), name)
            self.call_function(found.fset, (value, new), {})
        elif is_a(found, types.MemberDescriptorType) and self._has_old_slots(value):
            self.world.set_key(self.world.slots_of(value), name, new)
        elif found is not MISSING and is_a(setter := self.lookup(type(found), "__set__"), types.FunctionType):
            self.call_function(setter, (found, value, new), {})
        elif is_a(found, types.GetSetDescriptorType) or is_a(value, types.FunctionType):
            if not self.world.is_fresh(value) and self.world.source_of(value) is not None:
                raise Break(BreakKind.UNSUPPORTED, f"assignment to {name!r} of a {type(value).__name__}")
            setattr(value, name, new)
        else:
            self.store_in_instance(value, name, new)

    def _has_old_slots(self, value: Any) -> bool:
        return is_python_class(type(value)) and not self.world.is_fresh(value)

    def delete_attr(self, value: Any, name: str) -> None:
        if is_a(value, torch.Tensor) and self.has_attr(value, name):
            self.world.delete_key(self._tensor_space(value, name), name)
            return
        if is_a(value, torch.Tensor | type | types.ModuleType):
            raise Break(BreakKind.UNSUPPORTED, f"deletion of attribute {name!r} of a {type(value).__name__}")
        remover = self.lookup(type(value), "__delattr__")
        if _is_plain(remover, "__delattr__"):
            self.plain_delete(value, name)
        else:
            self.call_function(remover, (value, name), {})

    def plain_delete(self, value: Any, name: str) -> None:
        """What `object.__delattr__` does."""
        found = self.lookup(type(value), name)
        if is_a(found, property):
            if found.fdel is None:
                raise property_without("deleter", type(value), name)
            self.call_function(found.fdel, (value,), {})
        elif is_a(remover := self.lookup(type(found), "__delete__"), types.FunctionType):
            self.call_function(remover, (found, value), {})
        elif self.world.is_fresh(value):
            object.__delattr__(value, name)
        elif is_a(found, types.MemberDescriptorType) and self._has_old_slots(value):
            slots = self.world.slots_of(value)
            if self.world.item_of(slots, name) is MISSING:
                self.guard_empty_slot(value, name)
                raise AttributeError(name, name=name, obj=value)
            self.world.delete_key(slots, name)
        elif self.world.has_instance_value(value, name):
            space: Any = self.world.instance_of(value)
            self.world.delete_key(space, name)
        else:
            raise AttributeError(
                f"'{type(value).__name__}' object has no attribute '{name}'", name=name, obj=value
            )


def _is_plain(method: Any, name: str) -> bool:
    """Whether it is a method of C by that name; a class may have taken another (`dict.__setitem__`)."""
    return is_a(method, types.WrapperDescriptorType) and method.__name__ == name
