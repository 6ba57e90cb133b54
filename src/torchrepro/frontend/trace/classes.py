"""Classes: written in Python or in C, the user's or of a library that does not change; what they define."""

from __future__ import annotations

import abc
import functools
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchrepro.frontend.guards.kinds import Answers, HasKey, Is, LacksAttribute, Length, TypeIs
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.source import Attribute, Item
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer

_HEAP_TYPE = 1 << 9
_LIBRARY = str(Path(sysconfig.get_path("stdlib")).resolve()) + "/"
OWN_MODULES = ("torchrepro.frontend.", "torchrepro.second_opinion.")
"""The tracer and what wraps it: never traced itself."""
_TORCH = str(Path(torch.__file__).resolve().parent) + "/"
_OWN = str(Path(__file__).resolve().parents[1]) + "/"

IN_C = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)
"""Functions and methods that are written in C."""

_CLASSES_IN_C = frozenset(
    {
        functools.partial,
        type(functools.lru_cache(lambda: None)),
        *(getattr(sys.modules["collections"], name) for name in ("deque", "defaultdict", "OrderedDict")),
    }
)


def _is_python_class(kind: Any) -> bool:
    """Return whether a class was made by a `class` statement, or a call like it; False for tensors."""
    if kind is types.SimpleNamespace:
        return True  # nothing but a `__dict__`
    if not kind.__flags__ & _HEAP_TYPE or kind in _CLASSES_IN_C or issubclass(kind, torch.Tensor):
        return False
    if kind.__module__.startswith(OWN_MODULES):
        return False  # a stand-in of the trace is not traced itself
    # A class in C has no namespace that Python code filled: every one made by `class` has its module as a
    # plain entry and can be subclassed without a `tp_new` of its own, or has a function of Python in it.
    space = kind.__dict__
    return "__module__" in space and (
        not space.keys().isdisjoint(("__dict__", "__slots__", "__static_attributes__"))
        or any(isinstance(item, types.FunctionType) for item in space.values())
        or any(map(is_python_class, kind.__bases__))
    )


is_python_class: Callable[[Any], bool] = functools.cache(_is_python_class)


@functools.cache
def is_trusted_file(file: str) -> bool:
    """Return whether it is code of torch, of Python's library or ours: it does not change while it runs."""
    if file.startswith("<frozen"):
        return True
    path = str(Path(file).resolve()) if file else ""
    if path.startswith((_TORCH, _OWN)):
        return True
    return path.startswith(_LIBRARY) and "site-packages" not in path


def is_trusted_space(space: dict[str, Any]) -> bool:
    """Return whether a module's globals are those of a trusted file."""
    file = space.get("__file__")
    return is_trusted_file(file) if isinstance(file, str) else space.get("__name__") == "builtins"


@functools.cache
def is_trusted_class(kind: Any) -> bool:
    """Return whether a class is written in C, or in Python in a trusted file."""
    module = sys.modules.get(kind.__module__)
    return module is not None and (not is_python_class(kind) or is_trusted_space(vars(module)))


_BY_IDENTITY = (
    *(type, types.ModuleType, types.MethodDescriptorType, types.WrapperDescriptorType, re.Pattern),
    *(types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(OpOverload, OpOverloadPacket, np.ufunc, np.dtype, type(np.sum)),
)
"""Objects of these types exist once, for as long as the program runs."""


def is_single(value: Any) -> bool:
    """Return whether the object itself can be held and guarded by identity."""
    if is_a(value, types.BuiltinFunctionType):
        owner = value.__self__
        if owner is None or is_a(owner, type | types.ModuleType):
            return True
        # A function of a module, which pybind binds to a record of its own.
        return type(owner).__module__.startswith("pybind11")
    return is_a(value, _BY_IDENTITY)


def static_lookup(kind: type, name: str) -> Any:
    """Return what a class and its bases define under a name, or `MISSING`, without running a descriptor."""
    for base in kind.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()

_METHODS_IN_C = (types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType)
DATA_IN_C = (types.GetSetDescriptorType, types.MemberDescriptorType)


class Classes:
    """What a class defines under a name, guarded to stay so.

    Classes can be changed between calls: the user's, and the methods of torch's layers too. So every
    lookup in a class or its bases goes through here.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.values = tracer, tracer.values
        self._looked_up: set[tuple[type, str]] = set()

    def lookup(self, kind: Any, name: str) -> Any:
        """Return what a class and its bases define under a name, or `MISSING`."""
        found = static_lookup(kind, name)
        if (kind, name) in self._looked_up:
            return found
        if not is_trusted_class(kind):
            self._looked_up.add((kind, name))
            self._guard_lookup(kind, name, found)
        elif is_a(found, types.FunctionType | property):
            self._looked_up.add((kind, name))
            self.values.guards.add(Is(Attribute(self.values.kept.hold(kind, kind.__name__), name), found))
        elif found is MISSING and issubclass(kind, torch.nn.Module):
            for base in kind.__mro__[:-1]:
                space = Attribute(self.values.kept.hold(base, base.__name__), "__dict__")
                self.values.guards.add(Length(space, len(base.__dict__)))  # it gains nothing that shadows
        return found

    def _guard_lookup(self, kind: Any, name: str, found: Any) -> None:
        meta = static_lookup(type(kind), name)
        hidden = is_a(meta, DATA_IN_C) or (found is MISSING and meta is not MISSING)
        if hidden or self.values.is_fresh(kind) or type(kind) not in (type, abc.ABCMeta):
            self.guard_namespaces(kind, name, kind.__mro__)
            return
        # `getattr` of the class finds the entry itself, and is the quickest check.
        source = self.values.kept.hold(kind, kind.__name__)
        home = Attribute(source, name)
        match found:
            case _ if found is MISSING:
                self.values.guards.add(LacksAttribute(source, name))
            case _ if is_single(found) or is_a(found, (property, types.FunctionType)):
                self.values.guards.add(Is(home, found))
            case staticmethod(__func__=types.FunctionType() as function):
                self.values.guards.add(Is(home, function))
            case classmethod(__func__=types.FunctionType() as function):
                self.values.guards.add(Is(Attribute(home, "__func__"), function))
            case _ if hasattr(type(found), "__get__"):
                self.guard_namespaces(kind, name, kind.__mro__)
            case _:
                # A plain value is adopted where it is read.
                self.values.guards.add(TypeIs(home, type(found)))

    def guard_method(self, tensor: Any, name: str) -> None:
        """Guard what the class of a tensor has under a name: torch's own methods may be replaced too."""
        kind: Any = self.tracer.recorder.real_type_of(tensor)
        if (kind, name) in self._looked_up:
            return
        self._looked_up.add((kind, name))
        found = getattr(kind, name, MISSING)
        if found is getattr(kind, name, None):  # no method that is bound to the class
            self.values.guards.add(Is(Attribute(self.values.kept.hold(kind, kind.__name__), name), found))

    def guard_lack(self, kind: type, name: str) -> None:
        """Guard that a class, even one of torch's, does not gain an attribute that the user looked up."""
        if not hasattr(kind, name):
            self.values.guards.add(LacksAttribute(self.values.kept.hold(kind, kind.__name__), name))

    def guard_kinship(self, kind: Any, other: Any) -> None:
        """Guard whether a class is a subclass of another, virtual subclasses included."""
        both = (kind, other)
        if kind is other or not is_a(kind, type):
            return
        if not is_a(other, abc.ABCMeta) or any(map(self.values.is_fresh, both)):
            self._guard_mro(kind)
        elif not all(map(is_trusted_class, both)):
            self.values.guards.add(Answers(self.values.kept.hold(issubclass), both, issubclass(*both)))

    def _guard_mro(self, kind: type) -> None:
        if not is_trusted_class(kind) and not self.values.is_fresh(kind):
            source = Attribute(self.values.kept.hold(kind, kind.__name__), "__mro__")
            self.values.guards.add(Is(source, kind.__mro__))

    def guard_namespaces(self, kind: type, name: str, classes: Iterable[type]) -> None:
        """Guard which of the classes is the first to define the name, and with which value."""
        self._guard_mro(kind)
        for each in classes:
            if not is_trusted_class(each) and not self.values.is_fresh(each):
                space = Attribute(self.values.kept.hold(each, each.__name__), "__dict__")
                if name not in each.__dict__:
                    self.values.guards.add(HasKey(space, name, present=False))
                else:
                    self.values.guards.add(Is(Item.at(space, name), each.__dict__[name]))
            if name in each.__dict__:
                return

    def is_data_descriptor(self, found: Any) -> bool:
        kind = type(found)
        if self.lookup(kind, "__get__") is MISSING:
            return False  # then the instance comes first, as without a descriptor
        return self.lookup(kind, "__set__") is not MISSING or self.lookup(kind, "__delete__") is not MISSING

    def guard_entry(self, space: Mapping[str, Any], label: str, name: str) -> None:
        """Guard an entry of a library's module: it may be replaced."""
        self.values.guards.add(Is(Item.at(self.values.kept.hold(space, label), name), space[name]))

    def python_method(self, value: Any, name: str) -> Any:
        """Return the special method of an object where its class defines it in Python; None otherwise."""
        kind = type(value)
        if is_a(value, torch.Tensor):
            self.guard_method(value, name)
        if not is_python_class(kind):
            return None
        found = self.lookup(kind, name)
        return None if found is MISSING or is_a(found, _METHODS_IN_C) else found
