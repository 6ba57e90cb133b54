"""World: the values of one trace. Where each came from, what stands in for it, and which guards that needs.

A value that existed before the call is *adopted* when it is first read: constants are guarded and are
constants from then on; tensors become fakes and inputs of the graph; containers are replaced by copies, which
may be changed freely; objects of Python classes stay themselves, and only their `__dict__` has a copy. So
tracing changes nothing of the user's, and starting again needs no undoing.
"""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from torchrepro.frontend.codegen.objects import Shadow, ShadowKind, dict_copy, is_full, slots
from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.guards import kinds
from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.raw_access import bare, is_a
from torchrepro.frontend.source import Attribute, Item, KeyOf, Memory, Source, instance_value
from torchrepro.frontend.trace.classes import MISSING, is_python_class, is_single
from torchrepro.frontend.trace.fakes import outside_of_trace
from torchrepro.frontend.trace.values import Dicts, Values, clear_tables
from torchrepro.torch_api.numpy_emulation import tensor_of

_MANY = 256
"""The order of a set with more elements than this is not guarded."""

_DICTS = (dict, OrderedDict, defaultdict)
_LISTS = (list, deque)


class World:
    """Adopts what existed before the call; objects, cells and globals are read and written part by part."""

    def __init__(self, values: Values, changing: frozenset[Source] = frozenset()) -> None:
        self.values = values
        self.dicts = Dicts(values, self.adopt)
        self.changing = changing
        """Sources of numbers that must not be relied on."""
        self._slots: dict[int, dict[str, Any]] = {}
        self._cells: dict[int, types.CellType] = {}
        self._written_cells: set[int] = set()

    def forget(self) -> None:
        for owner in (self, self.dicts, self.values):
            clear_tables(owner)

    def adopt(self, value: Any, source: Source) -> Any:
        """Return the value that tracing uses for what is at `source`, guarded."""
        if is_constant(value):
            if source in self.changing:
                told = f"{source} changes on every call"
                raise Break(BreakKind.CHANGING, told, "make it a tensor, or keep it out of the function")
            self.values.guards.add(kinds.Is(source, value))
            return value
        if id(value) in self.values.stand_ins:
            known = self.values.stand_ins[id(value)]
            first = self.values.sources[id(known)]
            if first != source:
                self.values.guards.add(kinds.ObjectCount(source, 1, others=(first,)))
            return known
        if is_single(value):
            self.values.guards.add(kinds.Is(source, value))
            return value
        if id(value) in self.values.fresh or id(value) in self.values.sources:
            return value
        return self._adopt_object(value, source)

    def _adopt_object(self, value: Any, source: Source) -> Any:
        kind = type(value)
        if is_a(value, torch.Tensor):
            return self._adopt_tensor(value, source)
        if kind is types.FunctionType:
            self.values.guards.add(kinds.TypeIs(source, kind))
            self.values.guards.add(kinds.Is(Attribute(source, "__code__"), value.__code__))
            self.values.objects.append((value, source))
            return self.values.register(value, value, source)
        self.values.guards.add(kinds.TypeIs(source, kind))
        if kind is types.MethodType:
            function = self.adopt(value.__func__, Attribute(source, "__func__"))
            owner = self.adopt(value.__self__, Attribute(source, "__self__"))
            return self.values.register(value, types.MethodType(function, owner), source)
        if kind in (types.BuiltinMethodType, types.MethodWrapperType):
            owner = self.adopt(value.__self__, Attribute(source, "__self__"))
            self.values.guards.add(kinds.Is(Attribute(source, "__name__"), value.__name__))
            return self.values.register(value, getattr(owner, value.__name__), source)
        if kind is partial:
            parts = ("func", "args", "keywords")
            function, args, keywords = (
                self.adopt(getattr(value, part), Attribute(source, part)) for part in parts
            )
            self.dicts.complete(keywords)
            return self.values.register(value, partial(function, *args, **keywords), source)
        if is_a(value, tuple):
            return self._adopt_tuple(value, source)
        if is_a(value, _LISTS):
            return self._adopt_list(value, source)
        if is_a(value, dict):
            return self._adopt_dict(value, source)
        if is_a(value, set | frozenset):
            return self._adopt_set(value, source)
        if kind is types.CellType:
            return self.values.register(value, value, source)
        self.values.objects.append((value, source))
        if kind is np.ndarray or issubclass(kind, np.generic):
            return self._adopt_array(value, source)
        if is_python_class(kind):
            if is_a(value, int | float | str | bytes):
                self.values.guards.add(kinds.Is(source, value))
            if not is_a(value, BaseException):
                return self.values.register(value, value, source)
        return self.values.register_opaque(value, source)

    def _adopt_tensor(self, value: torch.Tensor, source: Source) -> Any:
        self.values.guards.add(kinds.TensorLike(source, kinds.TensorFacts.of(value)))
        try:
            fake = self.values.recorder.input(value, source, str(source))
        except Break:
            # Of a kind that is not traced. It may be passed on; using it is a graph break.
            fake = self.values.register_opaque(value, source)
        self.values.tensors.append(source)
        return self.values.register(value, fake, source)

    def _adopt_array(self, value: Any, source: Source) -> Any:
        place = Memory(source)
        with outside_of_trace():
            tensor = tensor_of(value)
        if tensor is None:
            return self.values.register_opaque(value, source)
        fake = self.values.recorder.input(tensor, place, str(source))
        try:
            array = self.values.array_in(fake, scalar=type(value) is not np.ndarray)
        except Break:
            return self.values.register_opaque(value, source)
        self.values.guards.add(kinds.TensorLike(place, kinds.TensorFacts.of(tensor)))
        self.values.register(tensor, fake, place)
        return self.values.register(value, array, source)

    def _adopt_items(self, value: Any, source: Source, base: Any) -> Iterator[Any]:
        place = bare(source, value)
        self.values.guards.add(kinds.Length(place, base.__len__(value)))
        for index, item in enumerate(base.__iter__(value)):
            yield self.adopt(item, Item.at(place, index))

    def _adopt_tuple(self, value: Any, source: Source) -> Any:
        children = list(self._adopt_items(value, source, tuple))
        kind = type(value)
        if all(new is old for new, old in zip(children, tuple.__iter__(value), strict=True)):
            return self.values.register(value, value, source)
        if kind is tuple:
            return self.values.register(value, tuple(children), source)
        if hasattr(kind, "n_sequence_fields"):
            return self.values.register(value, kind(children), source)
        copy = tuple.__new__(kind, children)
        if hasattr(value, "__dict__"):
            self._copy_instance(value, copy, source)
        return self.values.register(value, copy, source)

    def _adopt_list(self, value: Any, source: Source) -> Any:
        kind = type(value)
        base: Any = deque if is_a(value, deque) else list
        copy = deque.__new__(kind) if is_a(value, deque) else list.__new__(kind)
        if is_a(value, deque):
            deque.__init__(copy, (), value.maxlen)
            self.values.guards.add(kinds.Is(Attribute(source, "maxlen"), value.maxlen))
        # Registered before its items, as a list may contain itself.
        self.values.register(value, copy, source)
        base.extend(copy, list(self._adopt_items(value, source, base)))
        self.values.shadows.append(
            Shadow(source, value, copy, ShadowKind.LIST if base is list else ShadowKind.DEQUE)
        )
        if kind not in _LISTS and hasattr(value, "__dict__"):
            self._copy_instance(value, copy, source)
        return copy

    def _adopt_dict(self, value: Any, source: Source) -> Any:
        kind = type(value)
        if kind in _DICTS:
            copy = value.copy()
        elif is_a(value, OrderedDict):
            copy = OrderedDict.__new__(kind)
            OrderedDict.update(copy, dict_copy(value))
        else:
            copy = dict.__new__(kind)
            if is_a(value, defaultdict):
                defaultdict.__init__(copy, value.default_factory)
            dict.update(copy, dict_copy(value))
        if is_a(value, defaultdict):
            self.adopt(value.default_factory, Attribute(source, "default_factory"))
        self.values.register(value, copy, source)
        self.values.objects.append((value, source))
        place = bare(source, value)
        shadow = source, value, copy, ShadowKind.DICT
        self.dicts.add(shadow, lambda key: Item.at(place, key), guarded=place)
        if kind not in _DICTS:
            self.dicts.complete(copy)
            if hasattr(value, "__dict__"):
                self._copy_instance(value, copy, source)
        return copy

    def _adopt_set(self, value: Any, source: Source) -> Any:
        plain = type(value) in (set, frozenset)
        if not plain or not all(is_constant(item) or is_single(item) for item in value):
            return self.values.register_opaque(value, source)
        if len(value) > _MANY:
            self.values.guards.add(kinds.Contains(source, frozenset(value)))
        else:
            # Equal sets may be iterated over in different orders.
            self.values.guards.add(kinds.Length(source, len(value)))
            for index, item in enumerate(value):
                self.dicts.guard_key(item, KeyOf(source, index))
        if type(value) is frozenset:
            return self.values.register(value, value, source)
        copy = set(value)
        self.values.shadows.append(Shadow(source, value, copy, ShadowKind.SET))
        return self.values.register(value, copy, source)

    def _copy_instance(self, original: Any, copy: Any, source: Source) -> None:
        """Adopt the attributes of an object that has been copied because it is a container too."""
        for name, item in original.__dict__.items():
            copy.__dict__[name] = self.adopt(item, instance_value(source, name))
        self.values.add_shadow(source, original, copy.__dict__, ShadowKind.ATTRIBUTES)
        self.values.instances[id(copy)] = copy.__dict__

    # Objects

    def instance_of(self, owner: Any) -> dict[str, Any] | None:
        """Return the `__dict__` that tracing reads and writes for an object; None where it has none."""
        known = self.values.instances.get(id(owner))
        if known is not None:
            return known
        try:
            space: Any = object.__getattribute__(owner, "__dict__")
        except AttributeError:
            return None
        if type(space) is not dict or id(owner) in self.values.fresh:
            return space if is_a(space, dict) else None
        source = self.values.home_of(owner)
        copy = self.values.instances[id(owner)] = dict(space)
        self.values.stand_ins[id(space)] = copy
        self.values.sources[id(copy)] = Attribute(source, "__dict__")
        shadow = source, owner, copy, ShadowKind.ATTRIBUTES
        return self.dicts.add(shadow, lambda name: instance_value(source, name))

    def instance_value(self, owner: Any, name: str) -> Any:
        """Return an attribute kept in the instance, or `MISSING`, guarded to stay so."""
        space = self.instance_of(owner)
        if space is None:
            return MISSING
        value = self.dicts.get(space, name)
        if (
            value is MISSING
            and id(owner) not in self.values.fresh
            and name not in self.values.before.get(id(space), {})
        ):
            self.values.guards.add(kinds.has_instance_value(self.values.home_of(owner), name, present=False))
        return value

    def has_instance_value(self, owner: Any, name: str) -> bool:
        space = self.instance_of(owner)
        if space is None:
            return False
        if id(owner) not in self.values.fresh:
            known = name in self.values.before.get(id(space), {})
            self.values.guards.add(kinds.has_instance_value(self.values.home_of(owner), name, present=known))
        return name in space

    def expose_instance(self, owner: Any) -> dict[str, Any] | None:
        """Return `owner.__dict__` as a value: from now on any code may look at all of it."""
        space = self.instance_of(owner)
        partial = self.dicts.partials.get(id(space))
        if space is not None and partial is not None and id(space) not in self.dicts.unfinished:
            partial.source = Attribute(partial.source, "__dict__")
            partial.guarded = True
            self.dicts.unfinished[id(space)] = partial
        return space

    def table_of(self, module: torch.nn.Module, table: str) -> dict[str, Any]:
        """Return the parameters, buffers or children of a module, to be read one by one."""
        space = self.instance_of(module)
        if space is None:
            return {}
        current = dict.get(space, table)
        partial = self.dicts.partials.get(id(space))
        if partial is None or table not in partial.unread or id(module) in self.values.fresh:
            return current if isinstance(current, dict) else {}
        if id(current) in self.values.stand_ins:
            return self.values.stand_ins[id(current)]  # type: ignore[no-any-return]
        source = self.values.home_of(module)
        original: Any = current
        place = instance_value(source, table)
        copy = self.values.register(original, dict(original), place)
        partial.unread.discard(table)
        dict.__setitem__(space, table, copy)
        shadow = place, original, copy, ShadowKind.DICT
        return self.dicts.add(shadow, lambda name: Item.at(place, name))

    def slots_of(self, owner: Any) -> dict[str, Any]:
        """Return the dict that tracing reads and writes in place of an old object's slots."""
        if id(owner) not in self._slots:
            source = self.values.home_of(owner)
            shadow = source, owner, dict(slots(owner)), ShadowKind.SLOTS
            self._slots[id(owner)] = self.dicts.add(shadow, lambda name: Attribute(source, name))
        return self._slots[id(owner)]

    # Cells and globals

    def cell_contents(self, cell: types.CellType) -> Any:
        """Return what a variable shared between functions holds now; raise `ValueError` for an empty one."""
        if id(cell) in self._cells:
            return self._cells[id(cell)].cell_contents
        source = self.values.sources.get(id(cell))
        if source is None:
            return cell.cell_contents
        if not is_full(cell):
            self.values.guards.add(kinds.Unbound(source))
        contents = self.adopt(cell.cell_contents, Attribute(source, "cell_contents"))
        self._cells[id(cell)] = types.CellType(contents)
        return contents

    def cell_for_writing(self, cell: types.CellType) -> types.CellType:
        """Return the cell that is written in place of an old one, and written back even if never read."""
        if id(cell) not in self.values.sources:
            return cell
        copy = self._cells.setdefault(id(cell), types.CellType())
        if id(cell) not in self._written_cells:
            self._written_cells.add(id(cell))
            self.values.shadows.append(
                Shadow(self.values.sources[id(cell)], cell, copy, ShadowKind.CELL, before={})
            )
        return copy

    def globals_of(self, space: dict[str, Any]) -> dict[str, Any]:
        """Return the globals of a module, to be read one by one."""
        if id(space) in self.values.stand_ins:
            return self.values.stand_ins[id(space)]  # type: ignore[no-any-return]
        source = self.values.kept.hold(space, f"globals of {space.get('__name__', '?')}")
        copy = self.values.register(space, dict(space), source)
        shadow = source, space, copy, ShadowKind.DICT
        self.dicts.add(shadow, lambda name: Item.at(source, name), guarded=source)
        del self.dicts.unfinished[id(copy)]
        return copy  # type: ignore[no-any-return]

    def exposed_globals(self, space: dict[str, Any]) -> dict[str, Any]:
        """Return `globals()` as a value: from now on any code may look at all of it."""
        copy = self.globals_of(space)
        if id(copy) in self.dicts.partials:
            self.dicts.unfinished[id(copy)] = self.dicts.partials[id(copy)]
        return copy
