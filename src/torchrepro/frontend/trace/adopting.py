"""Adopting: what takes the place of a value that existed before the call, and what is guarded for it."""

from __future__ import annotations

import collections
import functools
import gc
import types
from collections.abc import Iterator
from typing import Any

import torch

from torchrepro.frontend.codegen.objects import dict_items
from torchrepro.frontend.codegen.world import Shadow, ShadowKind
from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.guards.kinds import (
    Equal,
    Is,
    Length,
    SameObject,
    SetEquals,
    TensorFacts,
    TensorLike,
    TypeIs,
)
from torchrepro.frontend.raw_access import bare, is_a
from torchrepro.frontend.source import Attribute, InstanceValue, Item, KeyOf, Source
from torchrepro.frontend.trace.classes import is_python_class
from torchrepro.frontend.trace.dicts import Dicts
from torchrepro.frontend.trace.singles import is_single

_MANY = 256
"""Elements of a set: of more than that the order is not guarded."""

_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_LISTS = (list, collections.deque)


class Adopting(Dicts):
    def adopt(self, value: Any, source: Source) -> Any:
        """The value that tracing uses for what is at `source`, guarded."""
        if is_constant(value):
            if source in self.changing:
                told = f"{source} is another number in each call"
                raise Break(BreakKind.CHANGING, told, "make it a tensor, or keep it out of the function")
            self.guards.add(Equal(source, value))
            return value
        if id(value) in self._stand_ins:
            known = self._stand_ins[id(value)]
            first = self._sources[id(known)]
            if first != source:
                self.guards.add(SameObject(source, first))
            return known
        if is_single(value):
            self.guards.add(Is(source, value))
            return value
        if id(value) in self._fresh or id(value) in self._sources:
            return value
        return self._adopt_object(value, source)

    def _adopt_object(self, value: Any, source: Source) -> Any:
        kind = type(value)
        if is_a(value, torch.Tensor):
            return self._adopt_tensor(value, source)
        if kind is types.FunctionType:
            self.guards.add(TypeIs(source, kind))
            self.guards.add(Is(Attribute(source, "__code__"), value.__code__))
            self._objects.append((value, source))
            return self._register(value, value, source)
        self.guards.add(TypeIs(source, kind))
        if kind is types.MethodType:
            return self._adopt_method(value, source)
        if kind in (types.BuiltinMethodType, types.MethodWrapperType):
            owner = self.adopt(value.__self__, Attribute(source, "__self__"))
            self.guards.add(Equal(Attribute(source, "__name__"), value.__name__))
            return self._register(value, getattr(owner, value.__name__), source)
        if kind is functools.partial:
            return self._adopt_partial_function(value, source)
        if is_a(value, tuple):
            return self._adopt_tuple(value, source)
        if is_a(value, _LISTS):
            return self._adopt_list(value, source)
        if is_a(value, dict):
            return self._adopt_dict(value, source)
        if is_a(value, set | frozenset):
            return self._adopt_set(value, source)
        if kind is types.MappingProxyType:
            return self._adopt_proxy(value, source)
        if kind is types.CellType:
            return self._register(value, value, source)
        self._objects.append((value, source))
        if is_python_class(kind):
            if is_a(value, int | float | str | bytes):
                self.guards.add(Is(source, value))
            if not is_a(value, BaseException):
                return self._register(value, value, source)
        self._opaque.add(id(value))
        return self._register(value, value, source)

    def _adopt_tensor(self, value: torch.Tensor, source: Source) -> Any:
        self.guards.add(TensorLike(source, TensorFacts.of(value)))
        try:
            fake = self.recorder.input(value, source, str(source))
        except Break:
            # Of a kind that is not followed. It may be passed on; the recorder breaks where it is used.
            self._opaque.add(id(value))
            fake = value
        self._tensors.append(source)
        return self._register(value, fake, source)

    def _adopt_method(self, value: types.MethodType, source: Source) -> Any:
        function = self.adopt(value.__func__, Attribute(source, "__func__"))
        owner = self.adopt(value.__self__, Attribute(source, "__self__"))
        return self._register(value, types.MethodType(function, owner), source)

    def _adopt_partial_function(self, value: Any, source: Source) -> Any:
        function = self.adopt(value.func, Attribute(source, "func"))
        args = self.adopt(value.args, Attribute(source, "args"))
        keywords = self.adopt(value.keywords, Attribute(source, "keywords"))
        self.complete(keywords)
        return self._register(value, functools.partial(function, *args, **keywords), source)

    def _adopt_items(self, value: Any, source: Source, base: Any) -> Iterator[Any]:
        place = bare(source, value)
        self.guards.add(Length(place, base.__len__(value)))
        for index, item in enumerate(base.__iter__(value)):
            yield self.adopt(item, Item.at(place, index))

    def _adopt_tuple(self, value: Any, source: Source) -> Any:
        children = list(self._adopt_items(value, source, tuple))
        kind = type(value)
        if all(new is old for new, old in zip(children, tuple.__iter__(value), strict=True)):
            return self._register(value, value, source)
        if kind is tuple:
            return self._register(value, tuple(children), source)
        if hasattr(kind, "n_sequence_fields"):
            return self._register(value, kind(children), source)
        copy = tuple.__new__(kind, children)
        if hasattr(value, "__dict__"):
            self._copy_instance(value, copy, source)
        return self._register(value, copy, source)

    def _adopt_list(self, value: Any, source: Source) -> Any:
        kind = type(value)
        base: Any = collections.deque if is_a(value, collections.deque) else list
        copy = collections.deque.__new__(kind) if is_a(value, collections.deque) else list.__new__(kind)
        if is_a(value, collections.deque):
            collections.deque.__init__(copy, (), value.maxlen)
            self.guards.add(Equal(Attribute(source, "maxlen"), value.maxlen))
        # Registered before its items: a list may contain itself.
        self._register(value, copy, source)
        base.extend(copy, list(self._adopt_items(value, source, base)))
        self.shadows.append(
            Shadow(source, value, copy, ShadowKind.LIST if base is list else ShadowKind.DEQUE)
        )
        if kind not in _LISTS and hasattr(value, "__dict__"):
            self._copy_instance(value, copy, source)
        return copy

    def _adopt_dict(self, value: Any, source: Source) -> Any:
        self.require_unviewed(value)
        kind = type(value)
        if kind in _DICTS:
            copy = value.copy()
        elif is_a(value, collections.OrderedDict):
            copy = collections.OrderedDict.__new__(kind)
            collections.OrderedDict.update(copy, dict_items(value))
        else:
            copy = dict.__new__(kind)
            if is_a(value, collections.defaultdict):
                collections.defaultdict.__init__(copy, value.default_factory)
            dict.update(copy, dict_items(value))
        if is_a(value, collections.defaultdict):
            self.adopt(value.default_factory, Attribute(source, "default_factory"))
        self._register(value, copy, source)
        self._objects.append((value, source))
        place = bare(source, value)
        self._partial(place, value, copy, lambda key: Item.at(place, key))
        self._shadow(source, value, copy, ShadowKind.DICT)
        if kind not in _DICTS:
            self.complete(copy)
            if hasattr(value, "__dict__"):
                self._copy_instance(value, copy, source)
        return copy

    def _adopt_proxy(self, value: Any, source: Source) -> Any:
        """A read-only view. The dict behind it may be known by then; only the garbage collector tells it."""
        (behind,) = gc.get_referents(value)
        if type(behind) is not dict:
            self._opaque.add(id(value))
            return self._register(value, value, source)
        if id(behind) in self._stand_ins:
            return self._register(value, types.MappingProxyType(self._stand_ins[id(behind)]), source)
        copy = dict(behind)
        self._viewed.add(id(behind))
        self._partial(source, behind, copy, lambda key: Item.at(source, key))
        self.complete(copy)
        return self._register(value, types.MappingProxyType(copy), source)

    def require_unviewed(self, value: Any) -> None:
        """What a read-only view showed would not change with the dict behind it."""
        if id(value) in self._viewed:
            raise Break(BreakKind.UNSUPPORTED, "a dict that was read through a view before")

    def _adopt_set(self, value: Any, source: Source) -> Any:
        if not all(is_constant(item) or is_single(item) for item in value) or type(value) not in (
            set,
            frozenset,
        ):
            self._opaque.add(id(value))
            return self._register(value, value, source)
        if len(value) > _MANY:
            self.guards.add(SetEquals(source, frozenset(value)))
        else:
            # Equal sets may be iterated over in different orders.
            self.guards.add(Length(source, len(value)))
            for index, item in enumerate(value):
                self._guard_key(item, KeyOf(source, index))
        if type(value) is frozenset:
            return self._register(value, value, source)
        copy = set(value)
        self.shadows.append(Shadow(source, value, copy, ShadowKind.SET))
        return self._register(value, copy, source)

    def _copy_instance(self, original: Any, copy: Any, source: Source) -> None:
        """The attributes of an object that has been copied because it is a container too."""
        for name, item in original.__dict__.items():
            copy.__dict__[name] = self.adopt(item, InstanceValue(source, name))
        self._shadow(source, original, copy.__dict__, ShadowKind.ATTRIBUTES)
        self._instances[id(copy)] = copy.__dict__
