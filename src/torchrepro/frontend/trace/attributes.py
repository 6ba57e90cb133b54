"""Attributes: `object.name` as Python finds it, with properties, `__getattr__` and the like inlined.

The order is Python's: data descriptors of the class, the instance, the rest of the class, `__getattr__`.
What is found in an old object is adopted from there; the absence of a name is guarded as well.
"""

from __future__ import annotations

import types
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from torchrepro.frontend.graph_breaks import Break, BreakKind, BreakReason, Unsupported
from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.guards.kinds import HasKey, Is, LacksAttribute, has_instance_value
from torchrepro.frontend.interpreter.operations import Attributes
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.source import Attribute, instance_value
from torchrepro.frontend.trace.arrays import TracedArray
from torchrepro.frontend.trace.classes import (
    DATA_IN_C,
    IN_C,
    MISSING,
    is_python_class,
    is_single,
    is_trusted_class,
    is_trusted_space,
    static_lookup,
)
from torchrepro.frontend.trace.fakes import unseen
from torchrepro.frontend.trace.values import TABLES

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer

_UNGUARDED = frozenset({"is_leaf", "retains_grad", "output_nr"})
"""Facts of a tensor that the guard on every input does not cover."""

_CLASS = object.__dict__["__class__"]
_MODULE_GETATTR = torch.nn.Module.__getattr__


class TracedAttributes(Attributes):
    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.world = tracer, tracer.world
        self.values, self.dicts = tracer.values, tracer.dicts
        self.classes, self.recorder = tracer.classes, tracer.recorder
        self.lookup, self.guards = tracer.classes.lookup, tracer.values.guards

    def _call(self, function: Any, *args: Any) -> Any:
        return self.tracer.calls.call(function, args, {})

    def load(self, value: Any, name: str) -> Any:
        if is_a(value, torch.Tensor):
            return self._tensor(value, name)
        kind = type(value)
        if kind is types.TracebackType:
            told = "a traceback shows the frames that an error came through"
            raise Break.of(BreakReason(BreakKind.OUTSIDE, told, frames=True))
        if kind is types.ModuleType:
            return self._module(value, name)
        if kind is super:
            return self._super(value.__thisclass__, value.__self_class__, value.__self__, name)
        if is_python_class(kind) or is_a(value, type):
            return self._object(value, name)
        return self._native(value, name)

    def load_super(self, start: Any, value: Any, name: str) -> Any:
        owner = value if is_a(value, type) and issubclass(value, start) else type(value)
        return self._super(start, owner, value, name)

    def load_special(self, value: Any, name: str) -> Any:
        kind = type(value)
        found = self.lookup(kind, name)
        if found is MISSING:
            raise AttributeError(f"'{kind.__name__}' object has no attribute '{name}'")
        return self.bind(found, value, kind, name)

    # Reading

    def _object(self, value: Any, name: str) -> Any:
        try:
            return self._found(value, name)
        except AttributeError as error:
            if error.name is None and error.obj is None:  # as `PyObject_GetAttr` does
                error.name, error.obj = name, value
            raise

    def _found(self, value: Any, name: str) -> Any:
        lookup = self.lookup(type(value), "__getattribute__")
        try:
            if is_a(lookup, types.FunctionType):
                return self._call(lookup, value, name)
            return self.plain_load(value, name)
        except AttributeError:
            otherwise = self.lookup(type(value), "__getattr__")
            if otherwise is MISSING:
                raise
        if otherwise is _MODULE_GETATTR:
            return self._member(value, name)
        return self._call(otherwise, value, name)

    def plain_load(self, value: Any, name: str) -> Any:
        """Return what `object.__getattribute__` finds, or `type.__getattribute__` for a class."""
        kind, a_class = type(value), is_a(value, type)
        if name == "__dict__" and not a_class:
            space = self.world.expose_instance(value)
            if space is None:
                raise _lacks(value, name)
            return space
        found = self.lookup(kind, name)
        if found is _CLASS:
            return kind
        if a_class and is_a(found, DATA_IN_C):
            return self._class_fact(value, name)
        if found is not MISSING and self.classes.is_data_descriptor(found):
            return self.bind(found, value, kind, name)
        inside = self.lookup(value, name) if a_class else self.world.instance_value(value, name)
        if inside is not MISSING:
            return self.bind(inside, MISSING, value, name) if a_class else inside
        if found is not MISSING:
            return self.bind(found, value, kind, name)
        self.classes.guard_lack(value if a_class else kind, name)
        if a_class:
            return getattr(value, name)  # raises, unless C computes the attribute
        raise _lacks(value, name)

    def _member(self, module: torch.nn.Module, name: str) -> Any:
        for table in TABLES:
            space = self.world.table_of(module, table)
            if name in space:
                return self.dicts.get(space, name)
        if not self.values.is_fresh(module):
            home = self.values.home_of(module)
            for table in TABLES:
                self.guards.add(HasKey(instance_value(home, table), name, present=False))
            self.classes.guard_lack(type(module), name)
        raise _lacks(module, name)

    def bind(self, found: Any, value: Any, owner: type, name: str) -> Any:
        """Return what a class's entry gives when it is read through an instance, or (`MISSING`) the class."""
        through_class = value is MISSING
        match found:
            case types.FunctionType():
                return found if through_class else types.MethodType(found, value)
            case staticmethod():
                return found.__func__
            case classmethod():
                return types.MethodType(found.__func__, owner)
            case property() if through_class:
                return found
            case property():
                if found.fget is None:
                    raise _property_without("getter", owner, name)
                return self._call(found.fget, value)
            case cached_property() if not through_class:
                result = self._call(found.func, value)
                self.store_in_instance(value, found.attrname or name, result)
                return result
            case types.MemberDescriptorType() if not through_class and not self.values.is_fresh(value):
                return self._old_slot(value, name)
            case types.GetSetDescriptorType() | types.MemberDescriptorType() if not through_class:
                return found.__get__(value, owner)
        if is_a(found, IN_C) and not through_class:
            return found.__get__(value, owner) if hasattr(found, "__get__") else found
        getter = MISSING if is_a(found, type) else self.lookup(type(found), "__get__")
        if is_a(getter, types.FunctionType):
            return self._call(getter, found, None if through_class else value, owner)
        if getter is not MISSING:
            return getattr(owner, name) if through_class else found.__get__(value, owner)
        return self._class_value(owner, name, found)

    def _old_slot(self, value: Any, name: str) -> Any:
        inside = self.dicts.get(self.world.slots_of(value), name)
        if inside is not MISSING:
            return inside
        if self.lookup(type(value), "__getattr__") is not MISSING:
            raise Unsupported(f"slot {name!r} is empty, and a __getattr__ answers for it")
        if not hasattr(value, name):
            self.guards.add(LacksAttribute(self.values.home_of(value), name))
        raise AttributeError(f"'{type(value).__name__}' object has no attribute '{name}'", name=name)

    def _super(self, start: type, owner: type, value: Any, name: str) -> Any:
        own = {"__class__": super, "__thisclass__": start, "__self__": value, "__self_class__": owner}
        if name in own:
            return own[name]
        mro = owner.__mro__
        classes = mro[mro.index(start) + 1 :]
        self.classes.guard_namespaces(owner, name, classes)
        for base in classes:
            if name in base.__dict__:
                through_class = value is owner or (is_a(value, type) and issubclass(value, start))
                found = base.__dict__[name]
                if through_class and not is_a(found, (types.FunctionType, staticmethod, classmethod)):
                    return found.__get__(None, value) if hasattr(found, "__get__") else found
                return self.bind(found, MISSING if through_class else value, owner, name)
        raise AttributeError(f"'super' object has no attribute '{name}'", name=name)

    def _class_fact(self, owner: type, name: str) -> Any:
        """Return an attribute that C stores for a class: its name, its bases, its namespace."""
        value = getattr(owner, name)
        if is_trusted_class(owner) or self.values.is_fresh(owner):
            return value
        home = Attribute(self.values.kept.hold(owner, owner.__name__), name)
        if type(value) is tuple:
            self.guards.add(Is(home, value))
            return value
        return self.world.adopt(value, home)

    def _class_value(self, owner: type, name: str, found: Any) -> Any:
        """Return a plain value stored in a class."""
        return self.world.adopt(found, Attribute(self.values.kept.hold(owner, owner.__name__), name))

    def _module(self, module: types.ModuleType, name: str) -> Any:
        space = vars(module)
        if is_trusted_space(space):
            if name not in space:
                return getattr(module, name)
            value = space[name]
            if is_constant(value) or is_single(value) or is_a(value, types.FunctionType):
                self.classes.guard_entry(space, module.__name__, name)
                return value
        if name == "__dict__":
            return self.world.exposed_globals(space)
        known = self.world.globals_of(space)
        value = self.dicts.get(known, name)
        if value is MISSING and static_lookup(types.ModuleType, name) is MISSING:
            otherwise = self.dicts.get(known, "__getattr__")
            if otherwise is not MISSING:
                return self._call(otherwise, name)
        return getattr(module, name) if value is MISSING else value

    def _native(self, value: Any, name: str) -> Any:
        """Read an attribute of an object implemented in C: it is constant as long as the object is."""
        if self.values.is_opaque(value):
            raise Break(
                BreakKind.OPAQUE, f"attribute {name!r} of a {type(value).__qualname__}, which is not traced"
            )
        if is_a(value, types.FunctionType):
            return self._function(value, name)
        if type(value) is types.MethodType:
            if name == "__self__":
                return value.__self__
            return self.load(value.__func__, name) if name != "__func__" else value.__func__
        if type(value) is types.CellType and name == "cell_contents":
            return self.world.cell_contents(value)
        return getattr(value, name)

    def _function(self, function: types.FunctionType, name: str) -> Any:
        source = None if self.values.is_fresh(function) else self.values.home_of(function)
        if name in function.__dict__:
            if source is None:
                return function.__dict__[name]
            return self.world.instance_value(function, name)
        if source is not None and not hasattr(types.FunctionType, name):
            self.guards.add(has_instance_value(source, name, present=False))
        if source is None or is_trusted_space(function.__globals__):
            return getattr(function, name)
        if name == "__dict__":
            return self.world.expose_instance(function)
        if name == "__globals__":
            return self.world.exposed_globals(function.__globals__)
        found = static_lookup(types.FunctionType, name)
        value = getattr(function, name)
        return self.world.adopt(value, Attribute(source, name)) if is_a(found, DATA_IN_C) else value

    def _tensor(self, value: torch.Tensor, name: str) -> Any:
        """Read an attribute of a tensor: torch's through the recorder, the user's from the real tensor."""
        if name == "__class__":
            return self.recorder.real_type_of(value)
        self.values.require_known(value)  # methods of a subclass may be replaced
        self.classes.guard_method(value, name)
        origin = self.recorder.origin_of(value)
        if origin is None:
            return self.recorder.attribute(value, name)
        source, real = origin.source, origin.real
        with unseen():
            space = real.__dict__
            found = getattr(real, name) if name in ("grad", "grad_fn", *_UNGUARDED) else MISSING
            computed = value.grad_fn is not None  # maybe by a write of the graph
        if name == "grad" or (found is None and not computed):
            return self.world.adopt(found, Attribute(source, name))
        if name in space:
            return self.world.adopt(space[name], instance_value(source, name))
        if name not in space and not hasattr(type(real), name):
            self.guards.add(has_instance_value(source, name, present=False))
            self.classes.guard_lack(type(real), name)
        result = self.recorder.attribute(value, name)
        if name in _UNGUARDED:
            self.guards.add(Is(Attribute(source, name), found))
        return result

    def store_in_instance(self, value: Any, name: str, new: Any) -> None:
        if self.values.is_fresh(value):
            object.__setattr__(value, name, new)
            return
        space = self.world.instance_of(value)
        if space is None:
            raise Break(BreakKind.OPAQUE, f"assignment to {name!r} of a {type(value).__qualname__}")
        self.dicts.set(space, name, new)

    def has(self, value: Any, name: str) -> bool:
        try:
            self.load(value, name)
        except AttributeError:
            return False
        return True

    # Writing

    def store(self, value: Any, name: str, new: Any) -> None:
        if is_a(value, torch.Tensor | TracedArray):
            raise Unsupported(f"assignment to attribute {name!r} of a tensor or array")
        if is_a(value, type | types.ModuleType):
            if not self.values.is_fresh(value):
                raise Unsupported(f"assignment to attribute {name!r} of {value.__name__}")
            setattr(value, name, new)
            return
        setter = self.lookup(type(value), "__setattr__")
        if _is_plain(setter, "__setattr__"):
            self.plain_store(value, name, new)
        else:
            self._call(setter, value, name, new)

    def plain_store(self, value: Any, name: str, new: Any) -> None:
        """Do what `object.__setattr__` does."""
        found, fresh = self.lookup(type(value), name), self.values.is_fresh(value)
        if is_a(found, property):
            if found.fset is None:
                raise _property_without("setter", type(value), name)
            self._call(found.fset, value, new)
        elif is_a(found, types.MemberDescriptorType) and is_python_class(type(value)) and not fresh:
            self.dicts.set(self.world.slots_of(value), name, new)
        elif found is not MISSING and is_a(setter := self.lookup(type(found), "__set__"), types.FunctionType):
            self._call(setter, found, value, new)
        elif is_a(found, types.GetSetDescriptorType) or is_a(value, types.FunctionType):
            if not fresh and self.values.source_of(value) is not None:
                raise Unsupported(f"assignment to {name!r} of a {type(value).__name__}")
            setattr(value, name, new)
        else:
            self.store_in_instance(value, name, new)

    def delete(self, value: Any, name: str) -> None:
        if is_a(value, torch.Tensor | TracedArray | type | types.ModuleType):
            raise Unsupported(f"deletion of attribute {name!r} of a {type(value).__name__}")
        remover = self.lookup(type(value), "__delattr__")
        if _is_plain(remover, "__delattr__"):
            self.plain_delete(value, name)
        else:
            self._call(remover, value, name)

    def plain_delete(self, value: Any, name: str) -> None:
        """Do what `object.__delattr__` does; a graph break where the class has the name too."""
        if self.lookup(type(value), name) is not MISSING:
            raise Unsupported(f"deletion of {name!r}, which {type(value).__name__} defines")
        if self.values.is_fresh(value):
            object.__delattr__(value, name)
        elif self.world.has_instance_value(value, name):
            space: Any = self.world.instance_of(value)
            self.dicts.delete(space, name)
        else:
            raise _lacks(value, name)


def _lacks(value: Any, name: str) -> AttributeError:
    return AttributeError(f"'{type(value).__name__}' object has no attribute '{name}'", name=name, obj=value)


def _property_without(function: str, kind: type, name: str) -> AttributeError:
    return AttributeError(f"property '{name}' of '{kind.__qualname__}' object has no {function}")


def _is_plain(method: Any, name: str) -> bool:
    """Return whether it is C's method of that name: a class may alias another one (`dict.__setitem__`)."""
    return is_a(method, types.WrapperDescriptorType) and method.__name__ == name
