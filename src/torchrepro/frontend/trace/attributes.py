"""Attributes: `object.name` as Python finds it, with properties, `__getattr__` and the like stepped, not run.

The order is Python's: data descriptors of the class, the instance, the rest of the class, `__getattr__`.
What is found in an old object is adopted from there; that a name is *not* in it is guarded as well.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from torchrepro.frontend.graph_breaks import Break, BreakKind, BreakReason
from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.guards.kinds import Equal, Is, LacksAttribute, LacksInstanceValue, LacksMember
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.source import Attribute, InstanceValue
from torchrepro.frontend.trace.classes import (
    IN_C,
    MISSING,
    is_python_class,
    is_trusted_class,
    is_trusted_space,
    static_lookup,
)
from torchrepro.frontend.trace.fakes import unseen
from torchrepro.frontend.trace.known import TABLES
from torchrepro.frontend.trace.lookups import DATA_IN_C, Lookups
from torchrepro.frontend.trace.singles import is_single

_UNGUARDED = frozenset({"is_leaf", "retains_grad", "output_nr"})
"""Facts of a tensor that the guard on every input does not cover."""

_CLASS = object.__dict__["__class__"]
_MODULE_GETATTR = torch.nn.Module.__getattr__


class Attributes(Lookups):
    def load_attr(self, value: Any, name: str) -> Any:
        if is_a(value, torch.Tensor):
            return self.tensor_attr(value, name)
        kind = type(value)
        if kind is types.TracebackType:
            told = "a traceback shows the frames that an error came through"
            raise Break.of(BreakReason(BreakKind.OUTSIDE, told, frames=True))
        if kind is types.ModuleType:
            return self._module_attr(value, name)
        if is_a(value, type):
            return self._class_attr(value, name)
        if kind is super:
            return self._super_attr(value.__thisclass__, value.__self_class__, value.__self__, name)
        if not is_python_class(kind):
            return self._native_attr(value, name)
        return self._object_attr(value, name)

    def load_super_attr(self, super_type: Any, start: Any, value: Any, name: str) -> Any:
        if super_type is not super:
            return super().load_super_attr(super_type, start, value, name)
        owner = value if is_a(value, type) and issubclass(value, start) else type(value)
        return self._super_attr(start, owner, value, name)

    def load_special(self, value: Any, name: str) -> Any:
        kind = type(value)
        found = self.lookup(kind, name)
        if found is MISSING:
            raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
        return self._bind(found, value, kind, name)

    # Reading

    def _object_attr(self, value: Any, name: str) -> Any:
        lookup = self.lookup(type(value), "__getattribute__")
        try:
            if is_a(lookup, types.FunctionType):
                return self.call_function(lookup, (value, name), {})
            return self.plain_attr(value, name)
        except AttributeError:
            otherwise = self.lookup(type(value), "__getattr__")
            if otherwise is MISSING:
                raise
        if otherwise is _MODULE_GETATTR:
            return self._member(value, name)
        return self.call_function(otherwise, (value, name), {})

    def plain_attr(self, value: Any, name: str) -> Any:
        """What `object.__getattribute__` finds."""
        kind = type(value)
        if name == "__dict__":
            space = self.world.expose_instance(value)
            if space is None:
                raise AttributeError(
                    f"'{kind.__name__}' object has no attribute '{name}'", name=name, obj=value
                )
            return space
        found = self.lookup(kind, name)
        if found is _CLASS:
            return kind
        if found is not MISSING and self.is_data_descriptor(found):
            return self._bind(found, value, kind, name)
        inside = self.world.instance_value(value, name)
        if inside is not MISSING:
            return inside
        if found is not MISSING:
            return self._bind(found, value, kind, name)
        raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'", name=name, obj=value)

    def _member(self, module: torch.nn.Module, name: str) -> Any:
        for table in TABLES:
            space = self.world.table_of(module, table)
            if name in space:
                return self.world.item_of(space, name)
        if not self.world.is_fresh(module):
            for table in TABLES:
                self.world.guards.add(LacksMember(self.world.home_of(module), table, name))
            self.guard_lack(type(module), name)
        raise AttributeError(
            f"'{type(module).__name__}' object has no attribute '{name}'", name=name, obj=module
        )

    def _bind(self, found: Any, value: Any, kind: type, name: str) -> Any:
        """What a class's entry gives when it is read through an instance."""
        match found:
            case types.FunctionType():
                return types.MethodType(found, value)
            case property():
                if found.fget is None:
                    raise property_without("getter", kind, name)
                return self.call_function(found.fget, (value,), {})
            case staticmethod():
                return found.__func__
            case classmethod():
                return types.MethodType(found.__func__, kind)
            case functools.cached_property():
                result = self.call_function(found.func, (value,), {})
                self.store_in_instance(value, found.attrname or name, result)
                return result
            case types.MemberDescriptorType():
                return self._slot(found, value, name)
            case types.GetSetDescriptorType():
                return found.__get__(value, kind)
        if is_a(found, IN_C):
            return found.__get__(value, kind) if hasattr(found, "__get__") else found
        getter = self.lookup(type(found), "__get__")
        if is_a(getter, types.FunctionType):
            return self.call_function(getter, (found, value, kind), {})
        if getter is not MISSING and not is_a(found, type):
            return found.__get__(value, kind)
        return self._class_value(kind, name, found)

    def _slot(self, found: Any, value: Any, name: str) -> Any:
        if self.world.is_fresh(value):
            return found.__get__(value, type(value))
        inside = self.world.item_of(self.world.slots_of(value), name)
        if inside is MISSING:
            self.guard_empty_slot(value, name)
            raise AttributeError(f"'{type(value).__name__}' object has no attribute '{name}'", name=name)
        return inside

    def guard_empty_slot(self, value: Any, name: str) -> None:
        if self.lookup(type(value), "__getattr__") is not MISSING:
            raise Break(BreakKind.UNSUPPORTED, f"slot {name!r} is empty, and a __getattr__ answers for it")
        if not hasattr(value, name):
            self.world.guards.add(LacksAttribute(self.world.home_of(value), name))

    def _super_attr(self, start: type, owner: type, value: Any, name: str) -> Any:
        own = {"__class__": super, "__thisclass__": start, "__self__": value, "__self_class__": owner}
        if name in own:
            return own[name]
        mro = owner.__mro__
        classes = mro[mro.index(start) + 1 :]
        self.guard_namespaces(owner, name, classes)
        for base in classes:
            if name in base.__dict__:
                found = base.__dict__[name]
                if value is owner or (is_a(value, type) and issubclass(value, start)):
                    return self._bind_to_class(found, value)
                return self._bind(found, value, owner, name)
        raise AttributeError(f"'super' object has no attribute '{name}'", name=name)

    def _bind_to_class(self, found: Any, owner: type) -> Any:
        match found:
            case classmethod():
                return types.MethodType(found.__func__, owner)
            case staticmethod():
                return found.__func__
            case types.FunctionType():
                return found
        return found.__get__(None, owner) if hasattr(found, "__get__") else found

    def _class_attr(self, owner: type, name: str) -> Any:
        """The order is Python's: data descriptors of the metaclass, the class, the rest of the metaclass."""
        if name == "__class__":
            return type(owner)
        meta = self.lookup(type(owner), name)
        if is_a(meta, DATA_IN_C):
            return self._class_fact(owner, name)
        if meta is not MISSING and self.is_data_descriptor(meta):
            return self._bind(meta, owner, type(owner), name)
        found = self.lookup(owner, name)
        if found is not MISSING:
            return self._read_from_class(owner, name, found)
        if meta is not MISSING:
            return self._bind(meta, owner, type(owner), name)
        fallback = self.lookup(type(owner), "__getattr__")
        if is_a(fallback, types.FunctionType):
            return self.call_function(fallback, (owner, name), {})
        return getattr(owner, name)

    def _read_from_class(self, owner: type, name: str, found: Any) -> Any:
        if is_a(found, types.FunctionType | classmethod | staticmethod | property):
            return self._bind_to_class(found, owner) if not is_a(found, property) else found
        getter = self.lookup(type(found), "__get__")
        if is_a(getter, types.FunctionType) and not is_a(found, type):
            return self.call_function(getter, (found, None, owner), {})
        if getter is not MISSING and not is_a(found, type):
            return getattr(owner, name)
        return self._class_value(owner, name, found)

    def _class_fact(self, owner: type, name: str) -> Any:
        """What C keeps about a class: its name, its bases, its namespace."""
        value = getattr(owner, name)
        if is_trusted_class(owner) or self.world.is_fresh(owner):
            return value
        home = Attribute(self.world.kept.hold(owner, owner.__name__), name)
        if type(value) is tuple:
            self.world.guards.add(Is(home, value))
            return value
        return self.world.adopt(value, home)

    def _class_value(self, owner: type, name: str, found: Any) -> Any:
        """A plain value kept in a class."""
        fixed = is_trusted_class(owner) and not issubclass(owner, torch.nn.Module)
        if fixed and (is_constant(found) or is_single(found)):
            return found
        return self.world.adopt(found, Attribute(self.world.kept.hold(owner, owner.__name__), name))

    def _module_attr(self, module: types.ModuleType, name: str) -> Any:
        space = vars(module)
        if is_trusted_space(space):
            if name not in space:
                return getattr(module, name)
            value = space[name]
            if is_constant(value) or is_single(value) or is_a(value, types.FunctionType):
                self.guard_entry(space, module.__name__, name)
                return value
        if name == "__dict__":
            return self.world.exposed_globals(space)
        known = self.world.globals_of(space, module.__name__)
        value = self.world.item_of(known, name)
        if value is MISSING and static_lookup(types.ModuleType, name) is MISSING:
            otherwise = self.world.item_of(known, "__getattr__")
            if otherwise is not MISSING:
                return self.call_function(otherwise, (name,), {})
        return getattr(module, name) if value is MISSING else value

    def _native_attr(self, value: Any, name: str) -> Any:
        """Attributes of what is written in C: found by C, and constant as long as the object is."""
        if self.world.is_opaque(value):
            raise Break(
                BreakKind.OPAQUE, f"attribute {name!r} of a {type(value).__qualname__}, which is not followed"
            )
        if is_a(value, types.FunctionType):
            return self._function_attr(value, name)
        if type(value) is types.MethodType:
            if name == "__self__":
                return value.__self__
            return self.load_attr(value.__func__, name) if name != "__func__" else value.__func__
        if type(value) is types.CellType and name == "cell_contents":
            return self.world.cell_contents(value)
        return getattr(value, name)

    def _function_attr(self, function: types.FunctionType, name: str) -> Any:
        source = None if self.world.is_fresh(function) else self.world.home_of(function)
        if name in function.__dict__:
            if source is None:
                return function.__dict__[name]
            return self.world.instance_value(function, name)
        if source is not None and not hasattr(types.FunctionType, name):
            self.world.guards.add(LacksInstanceValue(source, name))
        if source is None or is_trusted_space(function.__globals__):
            return getattr(function, name)
        if name == "__dict__":
            return self.world.expose_instance(function)
        if name == "__globals__":
            return self.world.exposed_globals(function.__globals__)
        found = static_lookup(types.FunctionType, name)
        value = getattr(function, name)
        return self.world.adopt(value, Attribute(source, name)) if is_a(found, DATA_IN_C) else value

    def tensor_attr(self, value: torch.Tensor, name: str) -> Any:
        """An attribute of a tensor: torch's own through the recorder, the user's from the real tensor."""
        if name == "__class__":
            return self.recorder.real_type_of(value)
        source = self.world.source_of(value)
        real = self.recorder.real_of(value)
        put = self.world.put_onto(value)
        if put is not None and name in put:
            return self.world.item_of(put, name)
        if real is None or source is None:
            return self.recorder.attribute(value, name)
        with unseen():
            space = real.__dict__
            found = getattr(real, name) if name in ("grad", "grad_fn", *_UNGUARDED) else MISSING
            computed = value.grad_fn is not None  # maybe by a write of the graph
        if name == "grad" or (found is None and not computed):
            return self.world.adopt(found, Attribute(source, name))
        if name in space and put is None:
            return self.world.adopt(space[name], InstanceValue(source, name))
        if name not in space and not hasattr(type(real), name):
            self.world.guards.add(LacksInstanceValue(source, name))
            self.guard_lack(type(real), name)
        result = self.recorder.attribute(value, name)
        if name in _UNGUARDED:
            self.world.guards.add(Equal(Attribute(source, name), found))
        return result

    def store_in_instance(self, value: Any, name: str, new: Any) -> None:
        if self.world.is_fresh(value):
            object.__setattr__(value, name, new)
            return
        space = self.world.instance_of(value)
        if space is None:
            raise Break(BreakKind.OPAQUE, f"assignment to {name!r} of a {type(value).__qualname__}")
        self.world.set_key(space, name, new)

    def has_attr(self, value: Any, name: str) -> bool:
        try:
            self.load_attr(value, name)
        except AttributeError:
            return False
        return True


def property_without(function: str, kind: type, name: str) -> AttributeError:
    return AttributeError(f"property '{name}' of '{kind.__qualname__}' object has no {function}")
