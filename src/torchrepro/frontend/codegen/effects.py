"""Effects: writes the code that changes old objects as tracing changed their shadows, and only what changed.

Methods of the builtin types do it, so that nothing a subclass overrides runs.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any

from torchrepro.frontend.codegen.objects import (
    CannotRebuild,
    Shadow,
    ShadowKind,
    attributes,
    dict_copy,
    elements,
    is_full,
    slot_descriptors,
    slots,
)
from torchrepro.frontend.codegen.rebuild import Rebuilder
from torchrepro.frontend.codegen.recipes import dict_text
from torchrepro.frontend.guards.constants import is_constant, same
from torchrepro.frontend.raw_access import is_a


class Effects:
    """Call `write_all` once, when the code for the live values has been written."""

    def __init__(self, rebuilder: Rebuilder) -> None:
        self._r = rebuilder
        self._world = rebuilder.world
        self._todo = {id(shadow.stand_in): shadow for shadow in self._world.shadows}
        self._running: set[int] = set()
        rebuilder.settle = self._settle

    def write_all(self) -> None:
        while self._todo:
            self._write(next(iter(self._todo.values())))

    def _settle(self, stand_in: Any) -> None:
        if id(stand_in) in self._running:
            raise CannotRebuild(f"iterator of a {type(stand_in).__name__} that will contain it")
        if shadow := self._todo.get(id(stand_in)):
            self._write(shadow)

    def _write(self, shadow: Shadow) -> None:
        key = id(shadow.stand_in)
        del self._todo[key]
        self._running.add(key)
        # All values are made before the first write: none of them sees a half-written object.
        self._r.body.extend(WRITERS[shadow.kind](self, shadow))
        self._running.discard(key)

    def _target(self, shadow: Shadow) -> str:
        return self._r.writer.read(shadow.source)

    def _unchanged(self, old: Any, new: Any) -> bool:
        if new is old or new is self._world.stand_in(old):
            return True
        return is_constant(old) and is_constant(new) and same(new, old)

    def _sequence(self, shadow: Shadow) -> list[str]:
        """Return the statements that update a list or a deque."""
        old, new = list(elements(shadow.original)), list(elements(shadow.stand_in))
        same = len(list(takewhile(lambda pair: self._unchanged(*pair), zip(old, new, strict=False))))
        if same == len(old) == len(new):
            return []
        target, kind = self._target(shadow), self._r.held(list if shadow.kind is ShadowKind.LIST else deque)
        if same == len(old):
            return [f"{kind}.extend({target}, [{self._r.sequence(new[same:])}])"]
        if len(old) == len(new):
            changed = [
                index for index in range(same, len(new)) if not self._unchanged(old[index], new[index])
            ]
            return [
                f"{kind}.__setitem__({target}, {index}, {self._r.expression(new[index])})"
                for index in changed
            ]
        items = self._r.sequence(new)
        return [f"{kind}.clear({target})", f"{kind}.extend({target}, [{items}])"]

    def _set(self, shadow: Shadow) -> list[str]:
        originals = {id(self._world.stand_in(item)): item for item in elements(shadow.original)}
        now = [originals.get(id(item), item) for item in elements(shadow.stand_in)]
        # With their types, as an element may have been replaced by an equal one: `1` by `True`.
        before, after = ({(type(item), item) for item in items} for items in (originals.values(), now))
        removed = [item for kind, item in before if (kind, item) not in after]
        added = [item for item in now if (type(item), item) not in before]
        if not removed and not added:
            return []
        target, kind = self._target(shadow), self._r.held(set)
        gone, come = self._r.sequence(removed), self._r.sequence(added)
        return [
            *([f"{kind}.difference_update({target}, [{gone}])"] if gone else []),
            *([f"{kind}.update({target}, [{come}])"] if come else []),
        ]

    def _dict(self, shadow: Shadow) -> list[str]:
        kind = OrderedDict if is_a(shadow.original, OrderedDict) else dict
        lines = []
        if is_a(shadow.stand_in, defaultdict):
            factory = shadow.stand_in.default_factory
            if not self._unchanged(shadow.original.default_factory, factory):
                member = self._r.held(vars(defaultdict)["default_factory"])
                lines.append(f"{member}.__set__({self._target(shadow)}, {self._r.expression(factory)})")
        return lines + self._items(
            shadow,
            dict_copy(shadow.original),
            dict_copy(shadow.stand_in),
            put=lambda at, key, value: f"{self._r.held(kind)}.__setitem__({at}, {key}, {value})",
            drop=lambda at, key: f"{self._r.held(kind)}.__delitem__({at}, {key})",
        )

    def _attributes(self, shadow: Shadow) -> list[str]:
        cls = type(shadow.original)
        if issubclass(cls, type):  # the `__dict__` of a class is read-only
            return self._items(
                shadow,
                dict(vars(shadow.original)),
                shadow.stand_in,
                put=lambda at, key, value: f"{self._r.held(type)}.__setattr__({at}, {key}, {value})",
                drop=lambda at, key: f"{self._r.held(type)}.__delattr__({at}, {key})",
            )
        return self._items(
            shadow,
            attributes(shadow.original),
            shadow.stand_in,
            put=lambda at, key, value: f"{dict_text(self._r, at, cls)}[{key}] = {value}",
            drop=lambda at, key: f"del {dict_text(self._r, at, cls)}[{key}]",
        )

    def _slots(self, shadow: Shadow) -> list[str]:
        descriptors = slot_descriptors(type(shadow.original))
        named = {repr(name): self._r.held(descriptor) for name, descriptor in descriptors.items()}
        return self._items(
            shadow,
            dict(slots(shadow.original)),
            {name: shadow.stand_in[name] for name in descriptors if name in shadow.stand_in},
            put=lambda at, key, value: f"{named[key]}.__set__({at}, {value})",
            drop=lambda at, key: f"{named[key]}.__delete__({at})",
        )

    def _cell(self, shadow: Shadow) -> list[str]:
        old, new = shadow.original, shadow.stand_in
        if not is_full(new):
            return [f"del {self._target(shadow)}.cell_contents"] if is_full(old) else []
        # A written cell is written back, whatever it held.
        if shadow.before is None and is_full(old) and self._unchanged(old.cell_contents, new.cell_contents):
            return []
        return [f"{self._target(shadow)}.cell_contents = {self._r.expression(new.cell_contents)}"]

    def _items(
        self,
        shadow: Shadow,
        old: Mapping[Any, Any],
        new: Mapping[Any, Any],
        put: Callable[[str, str, str], str],
        drop: Callable[[str, str], str],
    ) -> list[str]:
        """Return the statements that set what changed; from where the order differs, items are reinserted."""
        old = old if shadow.before is None else shadow.before
        if len(old) == len(new) and all(
            key is other and self._unchanged(value, now)
            for (key, value), (other, now) in zip(old.items(), new.items(), strict=True)
        ):
            return []  # without hashing keys, which may run a `__hash__` of the user's
        originals = {id(self._world.stand_in(key)): key for key in old}
        new = {originals.get(id(key), key): value for key, value in new.items()}
        kept = [key for key in old if key in new]
        in_place = takewhile(lambda pair: pair[0] is pair[1], zip(kept, new, strict=False))
        moved = set(kept[len(list(in_place)) :])
        gone = [self._r.expression(key) for key in old if key not in new or key in moved]
        changed = [
            (self._r.expression(key), self._r.expression(value))
            for key, value in new.items()
            if key not in old or key in moved or not self._unchanged(old[key], value)
        ]
        at = self._target(shadow)
        return [*(drop(at, key) for key in gone), *(put(at, key, value) for key, value in changed)]


WRITERS: Mapping[ShadowKind, Callable[[Effects, Shadow], list[str]]] = {
    ShadowKind.LIST: Effects._sequence,
    ShadowKind.DICT: Effects._dict,
    ShadowKind.SET: Effects._set,
    ShadowKind.DEQUE: Effects._sequence,
    ShadowKind.CELL: Effects._cell,
    ShadowKind.ATTRIBUTES: Effects._attributes,
    ShadowKind.SLOTS: Effects._slots,
}
