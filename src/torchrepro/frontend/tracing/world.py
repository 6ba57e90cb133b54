"""World: the values of one trace. Where each came from, what stands in for it, and which guards that needs.

A value that existed before the call is *adopted* when it is first read: constants are guarded and are
constants from then on; tensors become fakes and inputs of the graph; containers are replaced by copies, which
may be changed freely; objects of Python classes stay themselves, and only their `__dict__` has a copy. So
tracing changes nothing of the user's, and starting again needs no undoing.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from torchrepro.frontend.breaks import Break, BreakKind
from torchrepro.frontend.guards.guard_set import Guards
from torchrepro.frontend.guards.kinds import (
    Equal,
    HasInstanceValue,
    HasKey,
    Is,
    Keys,
    LacksInstanceValue,
    LacksKey,
    Length,
    SameObject,
    SetEquals,
    TensorFacts,
    TensorLike,
    TypeIs,
)
from torchrepro.frontend.kept import Kept
from torchrepro.frontend.rebuild.world import Shadow, ShadowKind
from torchrepro.frontend.source import Attribute, Held, InstanceValue, Item, KeyOf, ModuleMember, Source
from torchrepro.frontend.tracing.classes import MISSING, is_python_class
from torchrepro.frontend.tracing.constants import is_constant, is_single
from torchrepro.frontend.tracing.fakes import tensors_in
from torchrepro.frontend.tracing.recorder import Recorder

TABLES = ("_parameters", "_buffers", "_modules")
"""Where an `nn.Module` keeps what `__getattr__` finds."""

_CONTAINERS = (ShadowKind.LIST, ShadowKind.SET, ShadowKind.DEQUE)
_MANY = 256
"""Elements of a set: of more than that the order is not guarded."""

_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_LISTS = (list, collections.deque)


@dataclass(slots=True, eq=False)
class Partial:
    """A copy of a dict whose values are adopted one by one, as they are read."""

    source: Source
    original: dict[Any, Any]
    copy: dict[Any, Any]
    child: Callable[[Any], Source]
    unread: set[Any]
    """Keys whose values are still the user's own."""
    guarded: bool = True
    """Whether a missing key needs a guard of its own."""


class Pending:
    """A variable that has not been read: its value is guarded when it is."""

    __slots__ = ("source", "value")

    def __init__(self, value: Any, source: Source) -> None:
        self.value = value
        self.source = source


@dataclass(eq=False)
class World:
    recorder: Recorder
    kept: Kept = field(default_factory=Kept)
    shadows: list[Shadow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.guards = Guards(self.kept)
        self._sources: dict[int, Source] = {}
        self._stand_ins: dict[int, Any] = {}
        self._alive: list[Any] = []
        self._fresh: set[int] = set()
        self._opaque: set[int] = set()
        self._partials: dict[int, Partial] = {}
        self._unfinished: dict[int, Partial] = {}
        self._instances: dict[int, dict[str, Any]] = {}
        self._slots: dict[int, dict[str, Any]] = {}
        self._cells: dict[int, types.CellType] = {}
        self._tensors: list[Source] = []
        self._objects: list[tuple[Any, Source]] = []
        """Objects, functions and dicts, of which identity alone may tell two."""
        self._written_cells: set[int] = set()
        self._before: dict[int, dict[Any, Any]] = {}
        self.outputs: list[torch.Tensor] = []

    def forget(self) -> None:
        """The trace is over; guards and kept objects have left it."""
        for table in vars(self).values():
            if isinstance(table, dict | list | set):
                table.clear()

    # Who is who

    def source_of(self, value: Any) -> Source | None:
        """Where a value of the trace that existed before the call is found again."""
        return value.source if type(value) is Pending else self._sources.get(id(value))

    def tensor_input(self, value: torch.Tensor) -> Source | None:
        return self._sources.get(id(value))

    def output_index(self, value: torch.Tensor) -> int:
        """The place of a tensor among the outputs of the graph."""
        for index, known in enumerate(self.outputs):
            if known is value:
                return index
        self.outputs.append(value)
        return len(self.outputs) - 1

    def home_of(self, value: Any) -> Source:
        """The source of an object that is not fresh; one that was come by otherwise is held for good."""
        source = self._sources.get(id(value))
        if source is None:
            name = getattr(value, "__qualname__", None)
            source = self.kept.hold(value, name if isinstance(name, str) else type(value).__name__)
            self._register(value, value, source)
        return source

    def stand_in(self, original: Any) -> Any:
        return self._stand_ins.get(id(original), original)

    def mark_fresh(self, value: Any) -> Any:
        """An object that code of the trace has just allocated."""
        self._alive.append(value)
        self._fresh.add(id(value))
        return value

    def is_fresh(self, value: Any) -> bool:
        return id(value) in self._fresh

    def is_opaque(self, value: Any) -> bool:
        """An old object of which nothing is known but its type: it may be passed on, not used."""
        return id(value) in self._opaque

    def identities(self) -> list[Source]:
        """What the trace took for different objects, and could be one and the same in another call."""
        containers = [shadow for shadow in self.shadows if shadow.kind in _CONTAINERS]
        alike: dict[Any, list[Source]] = {}
        written = any(map(self._is_written_module, self.shadows))
        for value, source in self._objects:
            if written or not isinstance(value, torch.nn.Module):
                kind = id(value.__code__) if isinstance(value, types.FunctionType) else type(value)
                alike.setdefault(kind, []).append(source)
        return [
            *self._tensors,
            *(shadow.source for shadow in containers if not isinstance(shadow.source, Held)),
            *(source for group in alike.values() if len(group) > 1 for source in group),
        ]

    def _is_written_module(self, shadow: Shadow) -> bool:
        """Of many modules only one that is changed can be told from another like it."""
        if shadow.kind is ShadowKind.ATTRIBUTES:
            before = shadow.before if isinstance(shadow.original, torch.nn.Module) else None
        else:
            table = isinstance(shadow.source, InstanceValue) and shadow.source.name in TABLES
            before = shadow.original if table else None
        return before is not None and (
            before.keys() != shadow.stand_in.keys()
            or any(
                new is not before[name] and new is not self.stand_in(before[name])
                for name, new in shadow.stand_in.items()
            )
        )

    def _shadow(self, source: Source, original: Any, stand_in: Any, kind: ShadowKind) -> None:
        """A copy whose changes are written back."""
        before = None
        if isinstance(stand_in, dict):
            before = self._before[id(stand_in)] = dict(stand_in)
        self.shadows.append(Shadow(source, original, stand_in, kind, before))

    def _register(self, original: Any, stand_in: Any, source: Source) -> Any:
        self._alive.append((original, stand_in))
        self._stand_ins[id(original)] = stand_in
        self._sources[id(stand_in)] = source
        return stand_in

    # Adopting

    def adopt(self, value: Any, source: Source, *, trusted: bool = False) -> Any:
        """The value that tracing uses for what is at `source`, guarded. `trusted`: it never changes."""
        if is_constant(value):
            if not trusted:
                self.guards.add(Equal(source, value))
            return value
        if id(value) in self._stand_ins:
            known = self._stand_ins[id(value)]
            first = self._sources[id(known)]
            if first != source and not trusted:
                self.guards.add(SameObject(source, first))
            return known
        if is_single(value):
            if not trusted:
                self.guards.add(Is(source, value))
            return value
        if id(value) in self._fresh or id(value) in self._sources:
            return value
        return self._adopt_object(value, source, trusted)

    def _adopt_object(self, value: Any, source: Source, trusted: bool) -> Any:
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self._adopt_tensor(value, source)
        if kind is types.FunctionType:
            if not trusted:
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
        if isinstance(value, tuple):
            return self._adopt_tuple(value, source)
        if isinstance(value, _LISTS):
            return self._adopt_list(value, source)
        if isinstance(value, dict):
            return self._adopt_dict(value, source)
        if isinstance(value, set | frozenset):
            return self._adopt_set(value, source)
        if kind in (types.MappingProxyType, slice):
            return self._register(value, value, source)
        if kind is types.CellType:
            return self._register(value, value, source)
        self._objects.append((value, source))
        if is_python_class(kind):
            if isinstance(value, int | float | str | bytes):
                self.guards.add(Is(source, value))
            if not isinstance(value, BaseException):
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

    def _adopt_tuple(self, value: Any, source: Source) -> Any:
        self.guards.add(Length(source, len(value)))
        children = [self.adopt(item, Item.at(source, index)) for index, item in enumerate(value)]
        kind = type(value)
        if all(new is old for new, old in zip(children, value, strict=True)):
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
        self.guards.add(Length(source, len(value)))
        kind = type(value)
        copy = collections.deque.__new__(kind) if isinstance(value, collections.deque) else list.__new__(kind)
        if isinstance(value, collections.deque):
            collections.deque.__init__(copy, (), value.maxlen)
            self.guards.add(Equal(Attribute(source, "maxlen"), value.maxlen))
        # Registered before its items: a list may contain itself.
        self._register(value, copy, source)
        base = collections.deque if isinstance(value, collections.deque) else list
        base.extend(copy, [self.adopt(item, Item.at(source, index)) for index, item in enumerate(value)])
        self.shadows.append(
            Shadow(source, value, copy, ShadowKind.LIST if base is list else ShadowKind.DEQUE)
        )
        if kind not in _LISTS and hasattr(value, "__dict__"):
            self._copy_instance(value, copy, source)
        return copy

    def _adopt_dict(self, value: Any, source: Source) -> Any:
        kind = type(value)
        if kind in _DICTS:
            copy = value.copy()
        elif isinstance(value, collections.OrderedDict):
            copy = collections.OrderedDict.__new__(kind)
            collections.OrderedDict.update(copy, dict.items(value))
        else:
            copy = dict.__new__(kind)
            if isinstance(value, collections.defaultdict):
                collections.defaultdict.__init__(copy, value.default_factory)
            dict.update(copy, value)
        if isinstance(value, collections.defaultdict):
            self.adopt(value.default_factory, Attribute(source, "default_factory"))
        self._register(value, copy, source)
        self._objects.append((value, source))
        self._partial(source, value, copy, lambda key: Item.at(source, key))
        self._shadow(source, value, copy, ShadowKind.DICT)
        if kind not in _DICTS:
            self.complete(copy)
            if hasattr(value, "__dict__"):
                self._copy_instance(value, copy, source)
        return copy

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

    # Dicts, key by key

    def _partial(
        self,
        source: Source,
        original: dict[Any, Any],
        copy: dict[Any, Any],
        child: Callable[[Any], Source],
        *,
        guarded: bool = True,
    ) -> Partial:
        partial = Partial(source, original, copy, child, set(original), guarded)
        self._alive.append(partial)
        self._partials[id(copy)] = partial
        if guarded:
            self._unfinished[id(copy)] = partial
        return partial

    def item_of(self, copy: dict[Any, Any], key: Any) -> Any:
        """The value under a key of a dict of the trace, adopted by now; `MISSING` where there is none."""
        self._pin_key(copy, key)
        partial = self._partials.get(id(copy))
        if partial is None:
            return dict.get(copy, key, MISSING)
        if key in partial.unread:
            # A key that is equal but another object (`1` and `True`) reads what is there.
            partial.unread.discard(key)
            adopted = self.adopt(dict.__getitem__(copy, key), partial.child(key))
            dict.__setitem__(copy, key, adopted)
            return adopted
        value = dict.get(copy, key, MISSING)
        if value is MISSING and partial.guarded:
            if key in partial.original:
                self.guards.add(HasKey(partial.source, key))
            else:
                self.guards.add(LacksKey(partial.source, key))
        return value

    def _pin_key(self, copy: dict[Any, Any], key: Any) -> None:
        """An object that is used as a key counts by its identity."""
        if is_constant(key) or is_single(key):
            return
        if type(key) is tuple:
            for item in key:
                self._pin_key(copy, item)
        elif isinstance(key, torch.Tensor):
            self.complete(copy)
        elif id(key) not in self._fresh and id(key) in self._sources:
            self.guards.add(Is(self._sources[id(key)], key))

    def has_key(self, copy: dict[Any, Any], key: Any) -> bool:
        self._pin_key(copy, key)
        partial = self._partials.get(id(copy))
        if partial is not None and partial.guarded:
            kind = HasKey if key in partial.original else LacksKey
            self.guards.add(kind(partial.source, key))
        return dict.__contains__(copy, key)

    def forget_unread(self, copy: dict[Any, Any], key: Any) -> None:
        """What was under a key is about to be replaced or deleted.

        The new value is written back in any case: nobody has read what another call will find there.
        """
        self._pin_key(copy, key)
        partial = self._partials.get(id(copy))
        if partial is not None:
            partial.unread.discard(key)
        before = self._before.get(id(copy))
        if before is not None and key in before:
            before[key] = MISSING

    def set_key(self, copy: dict[Any, Any], key: Any, value: Any) -> None:
        self.forget_unread(copy, key)
        dict.__setitem__(copy, key, value)

    def delete_key(self, copy: dict[Any, Any], key: Any) -> None:
        if not self.has_key(copy, key):
            raise KeyError(key)
        self.forget_unread(copy, key)
        dict.__delitem__(copy, key)

    def length_of(self, copy: dict[Any, Any]) -> int:
        partial = self._partials.get(id(copy))
        if partial is not None and partial.guarded:
            self.guards.add(Length(partial.source, len(partial.original)))
        return len(copy)

    def complete(self, copy: Any) -> None:
        """Adopt all that a dict contains: what runs now may look at any of it."""
        partial = self._partials.pop(id(copy), None)
        if partial is None:
            return
        self._unfinished.pop(id(copy), None)
        keys = tuple(partial.original)
        if all(map(is_constant, keys)):
            self.guards.add(Keys(partial.source, keys))
        else:
            self.guards.add(Length(partial.source, len(keys)))
            for index, key in enumerate(keys):
                self._guard_key(key, KeyOf(partial.source, index))
        for key in list(copy):
            if key in partial.unread:
                dict.__setitem__(copy, key, self.adopt(dict.__getitem__(copy, key), partial.child(key)))

    def _guard_key(self, key: Any, source: Source) -> None:
        if is_constant(key):
            self.guards.add(Equal(source, key))
        elif is_single(key) or next(tensors_in(key), None) is None:
            self.guards.add(Is(source, key))
        else:
            raise Break(BreakKind.UNSUPPORTED, "a dict of the caller has tensors as keys")

    def complete_all(self, values: Any) -> None:
        """Complete every dict that can be reached through containers from these values."""
        if not self._unfinished:
            return
        seen: set[int] = set()
        waiting = list(values)
        while waiting and self._unfinished:
            value = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, dict):
                self.complete(value)
                waiting.extend(dict.values(value))
            elif isinstance(value, list | tuple | collections.deque):
                waiting.extend(value)
            elif isinstance(value, types.MappingProxyType) or type(value).__name__.startswith("dict_"):
                waiting.append(getattr(value, "mapping", None))

    # Objects

    def instance_of(self, owner: Any) -> dict[str, Any] | None:
        """The `__dict__` that tracing reads and writes for an object; None where it has none."""
        known = self._instances.get(id(owner))
        if known is not None:
            return known
        space: Any = getattr(owner, "__dict__", None)
        if type(space) is not dict or id(owner) in self._fresh:
            return space if isinstance(space, dict) else None
        source = self.home_of(owner)
        copy = dict(space)
        self._instances[id(owner)] = copy
        self._partial(source, space, copy, lambda name: InstanceValue(source, name), guarded=False)
        self._stand_ins[id(space)] = copy
        self._sources[id(copy)] = Attribute(source, "__dict__")
        self._shadow(source, owner, copy, ShadowKind.ATTRIBUTES)
        return copy

    def instance_value(self, owner: Any, name: str) -> Any:
        """An attribute kept in the instance; `MISSING`, and guarded to stay so, where there is none."""
        space = self.instance_of(owner)
        if space is None:
            return MISSING
        value = self.item_of(space, name)
        if value is MISSING and id(owner) not in self._fresh and name not in self._original(space):
            self.guards.add(LacksInstanceValue(self.home_of(owner), name))
        return value

    def _original(self, space: dict[str, Any]) -> dict[str, Any]:
        partial = self._partials.get(id(space))
        return {} if partial is None else partial.original

    def has_instance_value(self, owner: Any, name: str) -> bool:
        space = self.instance_of(owner)
        if space is None:
            return False
        if id(owner) not in self._fresh:
            known = name in self._original(space)
            kind = HasInstanceValue if known else LacksInstanceValue
            self.guards.add(kind(self.home_of(owner), name))
        return name in space

    def expose_instance(self, owner: Any) -> dict[str, Any] | None:
        """`owner.__dict__` as a value: from now on any code may look at all of it."""
        space = self.instance_of(owner)
        partial = self._partials.get(id(space))
        if space is not None and partial is not None and id(space) not in self._unfinished:
            partial.source = Attribute(partial.source, "__dict__")
            partial.guarded = True
            self._unfinished[id(space)] = partial
        return space

    def table_of(self, module: torch.nn.Module, table: str) -> dict[str, Any]:
        """The parameters, buffers or children of a module, to be read one by one."""
        space = self.instance_of(module)
        if space is None:
            return {}
        current = dict.get(space, table)
        partial = self._partials.get(id(space))
        if partial is None or table not in partial.unread or id(module) in self._fresh:
            return current if isinstance(current, dict) else {}
        if id(current) in self._stand_ins:
            return self._stand_ins[id(current)]  # type: ignore[no-any-return]
        source = self.home_of(module)
        original: Any = current
        copy = dict(original)
        place = InstanceValue(source, table)
        self._register(original, copy, place)
        partial.unread.discard(table)
        dict.__setitem__(space, table, copy)
        self._partial(place, original, copy, lambda name: ModuleMember(source, table, name), guarded=False)
        self._shadow(place, original, copy, ShadowKind.DICT)
        return copy

    def slots_of(self, owner: Any) -> dict[str, Any]:
        """The slots of an old object, read and written in place of its own."""
        if id(owner) not in self._slots:
            source = self.home_of(owner)
            present = {
                name: getattr(owner, name) for name in _slot_names(type(owner)) if hasattr(owner, name)
            }
            copy = self._slots[id(owner)] = dict(present)
            self._partial(source, present, copy, lambda name: Attribute(source, name), guarded=False)
            self._shadow(source, owner, copy, ShadowKind.SLOTS)
        return self._slots[id(owner)]

    # Cells

    def adopt_cell(self, cell: types.CellType, source: Source) -> None:
        self._register(cell, cell, source)

    def cell_contents(self, cell: types.CellType) -> Any:
        """What a variable shared between functions holds now; raises `ValueError` for an empty one."""
        if id(cell) in self._cells:
            return self._cells[id(cell)].cell_contents
        source = self._sources.get(id(cell))
        if source is None:
            return cell.cell_contents
        contents = self.adopt(cell.cell_contents, Attribute(source, "cell_contents"))
        self._cells[id(cell)] = types.CellType(contents)
        return contents

    def cell_for_writing(self, cell: types.CellType) -> types.CellType:
        """The cell that is written in place of an old one; written back in any case, read before or not."""
        if id(cell) not in self._sources:
            return cell
        copy = self._cells.setdefault(id(cell), types.CellType())
        if id(cell) not in self._written_cells:
            self._written_cells.add(id(cell))
            self.shadows.append(Shadow(self._sources[id(cell)], cell, copy, ShadowKind.CELL, before={}))
        return copy

    def exposed_globals(self, space: dict[str, Any]) -> dict[str, Any]:
        """`globals()` as a value: from now on any code may look at all of it."""
        copy = self.globals_of(space, f"globals of {space.get('__name__', '?')}")
        if id(copy) in self._partials:
            self._unfinished[id(copy)] = self._partials[id(copy)]
        return copy

    def globals_of(self, space: dict[str, Any], label: str) -> dict[str, Any]:
        """The globals of a module, to be read one by one."""
        if id(space) in self._stand_ins:
            return self._stand_ins[id(space)]  # type: ignore[no-any-return]
        source = self.kept.hold(space, label)
        copy = dict(space)
        self._register(space, copy, source)
        self._partial(source, space, copy, lambda name: Item.at(source, name))
        del self._unfinished[id(copy)]
        self._shadow(source, space, copy, ShadowKind.DICT)
        return copy


def _slot_names(kind: type) -> list[str]:
    return [
        name
        for base in reversed(kind.__mro__)
        for name, found in base.__dict__.items()
        if isinstance(found, types.MemberDescriptorType)
    ]
