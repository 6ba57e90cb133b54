"""Lookups: what a class defines under a name, guarded to stay so.

Classes can be changed between calls: the user's, and the methods of torch's layers too. So whatever asks a
class, or what it derives from, asks here.
"""

from __future__ import annotations

import abc
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from torchrepro.frontend.guards.kinds import Answers, Is, LacksAttribute, LacksKey, TypeIs
from torchrepro.frontend.interpreter.interpreter import Interpreter
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.source import Attribute, Item
from torchrepro.frontend.trace.classes import MISSING, is_trusted_class, is_trusted_space, static_lookup
from torchrepro.frontend.trace.recorder import Recorder
from torchrepro.frontend.trace.singles import is_single
from torchrepro.frontend.trace.world import World

DATA_IN_C = (types.GetSetDescriptorType, types.MemberDescriptorType)


class Lookups(Interpreter):
    world: World
    recorder: Recorder

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

    def _guard_lookup(self, kind: Any, name: str, found: Any) -> None:
        meta = static_lookup(type(kind), name)
        hidden = is_a(meta, DATA_IN_C) or (found is MISSING and meta is not MISSING)
        if hidden or self.world.is_fresh(kind) or type(kind) not in (type, abc.ABCMeta):
            self.guard_namespaces(kind, name, kind.__mro__)
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
                self.guard_namespaces(kind, name, kind.__mro__)
            case _:
                # A plain value: who reads it, adopts it.
                self.world.guards.add(TypeIs(home, type(found)))

    def guard_lack(self, kind: type, name: str) -> None:
        """A class, of torch's even, that does not have what the user asks for may come to have it."""
        if not hasattr(kind, name):
            self.world.guards.add(LacksAttribute(self.world.kept.hold(kind, kind.__name__), name))

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

    def guard_namespaces(self, kind: type, name: str, classes: Iterable[type]) -> None:
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

    def is_data_descriptor(self, found: Any) -> bool:
        kind = type(found)
        return self.lookup(kind, "__set__") is not MISSING or self.lookup(kind, "__delete__") is not MISSING

    def guard_entry(self, space: Mapping[str, Any], label: str, name: str) -> None:
        """What the user's code finds in a library may be replaced, and what layers of torch find in torch."""
        reader = "" if self.frame is None else str(self.frame.globals.get("__name__"))
        if (
            self.frame is None
            or reader.startswith("torch.nn.modules.")
            or not is_trusted_space(self.frame.globals)
        ):
            self.world.guards.add(Is(Item.at(self.world.kept.hold(space, label), name), space[name]))
