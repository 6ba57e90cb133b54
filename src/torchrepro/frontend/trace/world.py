"""World: the values of one trace. Where each came from, what stands in for it, and which guards that needs.

A value that existed before the call is *adopted* when it is first read: constants are guarded and are
constants from then on; tensors become fakes and inputs of the graph; containers are replaced by copies, which
may be changed freely; objects of Python classes stay themselves, and only their `__dict__` has a copy. So
tracing changes nothing of the user's, and starting again needs no undoing.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from torchrepro.frontend.codegen.objects import is_full
from torchrepro.frontend.codegen.world import Shadow, ShadowKind
from torchrepro.frontend.guards.kinds import EmptyCell, HasInstanceValue, LacksInstanceValue
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.source import Attribute, InstanceValue, Item, ModuleMember, Source
from torchrepro.frontend.trace.adopting import Adopting
from torchrepro.frontend.trace.classes import MISSING
from torchrepro.frontend.trace.fakes import unseen


class World(Adopting):
    """Adds objects, cells and globals: what is read and written part by part."""

    # Objects

    def instance_of(self, owner: Any, original: Any = None) -> dict[str, Any] | None:
        """The `__dict__` that tracing reads and writes for an object; None where it has none.

        `original`: of an owner that stands in for another object.
        """
        known = self._instances.get(id(owner))
        if known is not None:
            return known
        original = owner if original is None else original
        space: Any = _space_of(original)
        if type(space) is not dict or id(owner) in self._fresh:
            return space if is_a(space, dict) else None
        self.require_unviewed(space)
        source = self.home_of(owner)
        copy = dict(space)
        self._instances[id(owner)] = copy
        self._partial(source, space, copy, lambda name: InstanceValue(source, name), guarded=False)
        self._stand_ins[id(space)] = copy
        self._sources[id(copy)] = Attribute(source, "__dict__")
        self._shadow(source, original, copy, ShadowKind.ATTRIBUTES)
        return copy

    def instance_of_tensor(self, fake: torch.Tensor, real: torch.Tensor | None) -> dict[str, Any]:
        """The `__dict__` of a tensor, to be written; of one that is computed, what it will be given."""
        if real is None:
            return self._instances.setdefault(id(fake), {})
        with unseen():
            space = self.instance_of(fake, real)
        assert space is not None
        return space

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
        """What was in it before the call, also when all of it has been read."""
        return self._before.get(id(space), {})

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
        if not is_full(cell):
            self.guards.add(EmptyCell(source))
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


def _space_of(owner: Any) -> Any:
    try:
        return object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None


def _slot_names(kind: type) -> list[str]:
    return [
        name
        for base in reversed(kind.__mro__)
        for name, found in base.__dict__.items()
        if is_a(found, types.MemberDescriptorType)
    ]
