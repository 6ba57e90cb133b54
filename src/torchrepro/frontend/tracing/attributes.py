"""Attributes: `object.name` as Python finds it, with properties, `__getattr__` and the like stepped, not run.

The order is Python's: data descriptors of the class, the instance, the rest of the class, `__getattr__`.
What is found in an old object is adopted from there; that a name is *not* in it is guarded as well.
"""

from __future__ import annotations

import abc
import functools
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from torchrepro.frontend.asking import is_a
from torchrepro.frontend.breaks import Break, BreakKind, BreakReason
from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.guards.kinds import (
    Answers,
    Equal,
    Is,
    LacksAttribute,
    LacksInstanceValue,
    LacksKey,
    LacksMember,
    TypeIs,
)
from torchrepro.frontend.interpreter.interpreter import Interpreter
from torchrepro.frontend.source import Attribute, InstanceValue, Item
from torchrepro.frontend.tracing.classes import (
    IN_C,
    MISSING,
    is_python_class,
    is_trusted_class,
    is_trusted_space,
    static_lookup,
)
from torchrepro.frontend.tracing.fakes import unseen
from torchrepro.frontend.tracing.known import TABLES
from torchrepro.frontend.tracing.recorder import Recorder
from torchrepro.frontend.tracing.singles import is_single
from torchrepro.frontend.tracing.world import World

_UNGUARDED = frozenset({"is_leaf", "retains_grad", "output_nr"})
"""Facts of a tensor that the guard on every input does not cover."""

_CLASS = object.__dict__["__class__"]
_MODULE_GETATTR = torch.nn.Module.__getattr__
_DATA_IN_C = (types.GetSetDescriptorType, types.MemberDescriptorType)


class Attributes(Interpreter):
    """Reading and writing attributes during a trace."""

    world: World
    recorder: Recorder

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
        if found is not MISSING and self._is_data_descriptor(found):
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
            self._guard_lack(type(module), name)
        raise AttributeError(
            f"'{type(module).__name__}' object has no attribute '{name}'", name=name, obj=module
        )

    def _is_data_descriptor(self, found: Any) -> bool:
        kind = type(found)
        return self.lookup(kind, "__set__") is not MISSING or self.lookup(kind, "__delete__") is not MISSING

    def _bind(self, found: Any, value: Any, kind: type, name: str) -> Any:
        """What a class's entry gives when it is read through an instance."""
        match found:
            case types.FunctionType():
                return types.MethodType(found, value)
            case property():
                if found.fget is None:
                    raise _no("getter", kind, name)
                return self.call_function(found.fget, (value,), {})
            case staticmethod():
                return found.__func__
            case classmethod():
                return types.MethodType(found.__func__, kind)
            case functools.cached_property():
                result = self.call_function(found.func, (value,), {})
                self._store_in_instance(value, found.attrname or name, result)
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
            self._guard_empty_slot(value, name)
            raise AttributeError(f"'{type(value).__name__}' object has no attribute '{name}'", name=name)
        return inside

    def _guard_empty_slot(self, value: Any, name: str) -> None:
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
        self._guard_namespaces(owner, name, classes)
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
        if is_a(meta, _DATA_IN_C):
            return self._class_fact(owner, name)
        if meta is not MISSING and self._is_data_descriptor(meta):
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

    def lookup(self, kind: Any, name: str) -> Any:
        """What a class and its bases define under a name, or `MISSING`; guarded to stay so.

        Classes can be changed between calls: the user's, and the methods of torch's layers too.
        """
        found = static_lookup(kind, name)
        if self.world.is_new_lookup(kind, name):
            if not is_trusted_class(kind):
                self._guard_lookup(kind, name, found)
            elif is_a(found, types.FunctionType) and issubclass(kind, torch.nn.Module):
                self.world.guards.add(Is(Attribute(self.world.kept.hold(kind, kind.__name__), name), found))
        return found

    def _guard_lack(self, kind: type, name: str) -> None:
        """A class, of torch's even, that does not have what the user asks for may come to have it."""
        if not hasattr(kind, name):
            self.world.guards.add(LacksAttribute(self.world.kept.hold(kind, kind.__name__), name))

    def _guard_lookup(self, kind: Any, name: str, found: Any) -> None:
        meta = static_lookup(type(kind), name)
        hidden = is_a(meta, _DATA_IN_C) or (found is MISSING and meta is not MISSING)
        if hidden or self.world.is_fresh(kind) or type(kind) not in (type, abc.ABCMeta):
            self._guard_namespaces(kind, name, kind.__mro__)
            return
        # `getattr` of the class finds the entry itself, and is the quickest check.
        source = self.world.kept.hold(kind, kind.__name__)
        home = Attribute(source, name)
        match found:
            case _ if found is MISSING:
                self.world.guards.add(LacksAttribute(source, name))
            case property() | types.FunctionType():
                self.world.guards.add(Is(home, found))
            case _ if is_single(found):
                self.world.guards.add(Is(home, found))
            case staticmethod(__func__=types.FunctionType() as function):
                self.world.guards.add(Is(home, function))
            case classmethod(__func__=types.FunctionType() as function):
                self.world.guards.add(Is(Attribute(home, "__func__"), function))
            case _ if hasattr(type(found), "__get__"):
                self._guard_namespaces(kind, name, kind.__mro__)
            case _:
                # A plain value: who reads it, adopts it.
                self.world.guards.add(TypeIs(home, type(found)))

    def guard_kinship(self, kind: Any, other: Any) -> None:
        """Whether a class derives from another, or is registered as if."""
        if kind is other or not is_a(kind, type) or is_trusted_class(kind) or self.world.is_fresh(kind):
            return
        if is_a(other, abc.ABCMeta) and not self.world.is_fresh(other):
            self.world.guards.add(Answers(issubclass, (kind, other), issubclass(kind, other)))
        else:
            self._guard_mro(kind)

    def _guard_mro(self, kind: type) -> None:
        if not is_trusted_class(kind) and not self.world.is_fresh(kind):
            source = Attribute(self.world.kept.hold(kind, kind.__name__), "__mro__")
            self.world.guards.add(Is(source, kind.__mro__))

    def _guard_namespaces(self, kind: type, name: str, classes: Iterable[type]) -> None:
        """The first of the classes that has the name now has it later, with the same value."""
        self._guard_mro(kind)
        for each in classes:
            if not is_trusted_class(each) and not self.world.is_fresh(each):
                space = Attribute(self.world.kept.hold(each, each.__name__), "__dict__")
                if name not in each.__dict__:
                    self.world.guards.add(LacksKey(space, name))
                else:
                    self.world.guards.add(Is(Item.at(space, name), each.__dict__[name]))
            if name in each.__dict__:
                return

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

    def guard_entry(self, space: Mapping[str, Any], label: str, name: str) -> None:
        """What the user's code finds in a library may be replaced, and what layers of torch find in torch."""
        reader = "" if self.frame is None else str(self.frame.globals.get("__name__"))
        if (
            self.frame is None
            or reader.startswith("torch.nn.modules.")
            or not is_trusted_space(self.frame.globals)
        ):
            self.world.guards.add(Is(Item.at(self.world.kept.hold(space, label), name), space[name]))

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
        return self.world.adopt(value, Attribute(source, name)) if is_a(found, _DATA_IN_C) else value

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
            self._guard_lack(type(real), name)
        result = self.recorder.attribute(value, name)
        if name in _UNGUARDED:
            self.world.guards.add(Equal(Attribute(source, name), found))
        return result

    # Writing

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
                raise _no("setter", type(value), name)
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
            self._store_in_instance(value, name, new)

    def _has_old_slots(self, value: Any) -> bool:
        return is_python_class(type(value)) and not self.world.is_fresh(value)

    def _store_in_instance(self, value: Any, name: str, new: Any) -> None:
        if self.world.is_fresh(value):
            object.__setattr__(value, name, new)
            return
        space = self.world.instance_of(value)
        if space is None:
            raise Break(BreakKind.OPAQUE, f"assignment to {name!r} of a {type(value).__qualname__}")
        self.world.set_key(space, name, new)

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
                raise _no("deleter", type(value), name)
            self.call_function(found.fdel, (value,), {})
        elif is_a(remover := self.lookup(type(found), "__delete__"), types.FunctionType):
            self.call_function(remover, (found, value), {})
        elif self.world.is_fresh(value):
            object.__delattr__(value, name)
        elif is_a(found, types.MemberDescriptorType) and self._has_old_slots(value):
            slots = self.world.slots_of(value)
            if self.world.item_of(slots, name) is MISSING:
                self._guard_empty_slot(value, name)
                raise AttributeError(name, name=name, obj=value)
            self.world.delete_key(slots, name)
        elif self.world.has_instance_value(value, name):
            space: Any = self.world.instance_of(value)
            self.world.delete_key(space, name)
        else:
            raise AttributeError(
                f"'{type(value).__name__}' object has no attribute '{name}'", name=name, obj=value
            )

    def has_attr(self, value: Any, name: str) -> bool:
        try:
            self.load_attr(value, name)
        except AttributeError:
            return False
        return True


def _no(function: str, kind: type, name: str) -> AttributeError:
    return AttributeError(f"property '{name}' of '{kind.__qualname__}' object has no {function}")


def _is_plain(method: Any, name: str) -> bool:
    """Whether it is a method of C by that name; a class may have taken another (`dict.__setitem__`)."""
    return is_a(method, types.WrapperDescriptorType) and method.__name__ == name
