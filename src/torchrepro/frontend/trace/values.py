"""Values of a trace by identity: where each came from, what stands in for it, which are new; and dicts.

A dict is a copy of the user's, whose values are adopted one by one, as they are read.
"""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchrepro.frontend.codegen.objects import Shadow, ShadowKind, dict_copy, elements
from torchrepro.frontend.codegen.writer import Kept
from torchrepro.frontend.graph_breaks import Break, BreakKind, Unsupported
from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.guards.kinds import Answers, Contains, Guards, HasKey, Is, Length
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.source import Held, KeyOf, Source
from torchrepro.frontend.trace.arrays import TracedArray, array_in
from torchrepro.frontend.trace.classes import MISSING, is_single
from torchrepro.frontend.trace.fakes import tensors_in
from torchrepro.frontend.trace.recorder import Recorder
from torchrepro.torch_api.numpy_emulation import errors_are_silent

TABLES = ("_parameters", "_buffers", "_modules")
"""Where an `nn.Module` keeps what `__getattr__` finds."""

_CONTAINERS = (ShadowKind.LIST, ShadowKind.SET, ShadowKind.DEQUE)


class Pending:
    """A variable that has not been read: its value is guarded when it is."""

    __slots__ = ("source", "value")

    def __init__(self, value: Any, source: Source) -> None:
        self.value = value
        self.source = source


def clear_tables(owner: Any) -> None:
    """Clear the tables of `owner` at the end of a trace, to release the user's objects."""
    for table in vars(owner).values():
        if is_a(table, dict | list | set):
            table.clear()


class Values:
    """Identity tables. Keys are `id`s; `alive` holds references to the objects."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.kept = Kept()
        self.shadows: list[Shadow] = []
        self.guards = Guards()
        self.sources: dict[int, Source] = {}
        self.stand_ins: dict[int, Any] = {}
        self.alive: list[Any] = []
        self.fresh: set[int] = set()
        self.opaque: set[int] = set()
        self.instances: dict[int, dict[str, Any]] = {}
        self.tensors: list[Source] = []
        self.objects: list[tuple[Any, Source]] = []
        """Objects, functions and dicts, which may be distinguishable by identity alone."""
        self.before: dict[int, dict[Any, Any]] = {}
        self.outputs: list[torch.Tensor] = []

    def source_of(self, value: Any) -> Source | None:
        """Return the source of a value that existed before the call; None for a new one."""
        return value.source if type(value) is Pending else self.sources.get(id(value))

    def output_index(self, value: torch.Tensor) -> int:
        """Return the index of a tensor among the outputs of the graph, appended if it is new."""
        for index, known in enumerate(self.outputs):
            if known is value:
                return index
        self.outputs.append(value)
        return len(self.outputs) - 1

    def home_of(self, value: Any) -> Source:
        """Return the source of an object that is not fresh; one without a source is held by the region."""
        source = self.sources.get(id(value))
        if source is None:
            named = is_a(value, type | types.FunctionType)
            source = self.kept.hold(value, value.__qualname__ if named else type(value).__name__)
            self.register(value, value, source)
        return source

    def stand_in(self, original: Any) -> Any:
        return self.stand_ins.get(id(original), original)

    def mark_fresh(self, value: Any) -> Any:
        """Register an object that code of the trace has just allocated."""
        self.alive.append(value)
        self.fresh.add(id(value))
        return value

    def is_fresh(self, value: Any) -> bool:
        return id(value) in self.fresh

    def pin(self, value: Any) -> None:
        """Guard the identity of an old object: the trace relies on facts that have no guards of their own."""
        source = self.sources.get(id(value))
        if source is not None and not is_a(source, Held):
            self.guards.add(Is(source, value))

    def is_opaque(self, value: Any) -> bool:
        """Return whether only the type of an object is known: it may be passed on, not used."""
        return id(value) in self.opaque or self.recorder.raised(value)

    def require_known(self, *values: Any) -> None:
        for value in values:
            if self.is_opaque(value):
                raise Break(BreakKind.OPAQUE, f"use of a {type(value).__qualname__}, which is not traced")

    def identities(self) -> list[Source]:
        """Return the sources of objects that were distinct here and could be one object in another call."""
        containers = [shadow for shadow in self.shadows if shadow.kind in _CONTAINERS]
        alike: dict[Any, list[Source]] = {}
        for value, source in self.objects:
            kind = id(value.__code__) if is_a(value, types.FunctionType) else type(value)
            alike.setdefault(kind, []).append(source)
        return [
            *self.tensors,
            *(shadow.source for shadow in containers if not is_a(shadow.source, Held)),
            *(source for group in alike.values() if len(group) > 1 for source in group),
        ]

    def add_shadow(
        self, source: Source, original: Any, stand_in: dict[Any, Any], kind: ShadowKind
    ) -> dict[Any, Any]:
        """Register a copy whose changes are to be written back; return its contents before them."""
        before = self.before[id(stand_in)] = dict_copy(stand_in)
        self.shadows.append(Shadow(source, original, stand_in, kind, before))
        return before

    def register_opaque(self, value: Any, source: Source) -> Any:
        """Register an object that is passed on as it is, and not used."""
        self.opaque.add(id(value))
        return self.register(value, value, source)

    def guard_numpy(self) -> None:
        """Guard that NumPy only warns about the values that it computes: graphs do not."""
        if not errors_are_silent():
            raise Break(BreakKind.OUTSIDE, "NumPy raises or reports errors here (np.seterr)")
        self.guards.add(Answers(self.kept.hold(errors_are_silent), (), True))

    def array_in(self, fake: torch.Tensor, **facts: bool) -> TracedArray:
        """Return the array in the memory of a tensor."""
        self.guard_numpy()
        return array_in(fake, **facts)

    def register(self, original: Any, stand_in: Any, source: Source) -> Any:
        self.alive.append((original, stand_in))
        self.stand_ins[id(original)] = stand_in
        self.sources[id(stand_in)] = source
        return stand_in


@dataclass(slots=True, eq=False)
class Partial:
    """A copy of a dict whose values are adopted one by one, as they are read."""

    source: Source
    before: dict[Any, Any]
    """What was in it before the call."""
    child: Callable[[Any], Source]
    guarded: bool
    """Whether a missing key needs a guard of its own."""
    unread: set[Any]
    """Keys whose values are still the user's own."""


class Dicts:
    def __init__(self, values: Values, adopt: Callable[[Any, Source], Any]) -> None:
        self.values, self.adopt = values, adopt
        self.partials: dict[int, Partial] = {}
        self.unfinished: dict[int, Partial] = {}

    def add(
        self,
        shadow: tuple[Source, Any, dict[Any, Any], ShadowKind],
        child: Callable[[Any], Source],
        *,
        guarded: Source | None = None,
    ) -> dict[Any, Any]:
        """Return the copy of a dict, registered as a shadow, to be read part by part.

        `guarded`: where the dict itself is found, if a missing key needs a guard of its own.
        """
        source, _, copy, _ = shadow
        before = self.values.add_shadow(*shadow)
        partial = Partial(guarded or source, before, child, guarded is not None, set(before))
        self.values.alive.append((partial, copy))
        self.partials[id(copy)] = partial
        if guarded is not None:
            self.unfinished[id(copy)] = partial
        return copy

    def get(self, copy: dict[Any, Any], key: Any) -> Any:
        """Return the adopted value under a key of a dict of the trace, or `MISSING`."""
        self._pin_key(copy, key)
        partial = self.partials.get(id(copy))
        if partial is None:
            return dict.get(copy, key, MISSING)
        if key in partial.unread:
            # An equal key that is another object (`1` and `True`) reads the same entry.
            partial.unread.discard(key)
            if hasattr(type(copy), "__missing__"):
                self.values.guards.add(HasKey(partial.source, key))  # reading a missing key would add it
            adopted = self.adopt(dict.__getitem__(copy, key), partial.child(key))
            dict.__setitem__(copy, key, adopted)
            return adopted
        value = dict.get(copy, key, MISSING)
        if value is MISSING:
            self._guard_presence(partial, key)
        return value

    def _guard_presence(self, partial: Partial | None, key: Any) -> None:
        if partial is not None and partial.guarded:
            self.values.guards.add(HasKey(partial.source, key, present=key in partial.before))

    def _pin_key(self, copy: dict[Any, Any], key: Any) -> None:
        """Guard the identity of an object that is used as a key."""
        if is_constant(key) or is_single(key):
            return
        if type(key) is tuple:
            for item in key:
                self._pin_key(copy, item)
        elif is_a(key, torch.Tensor):
            self.complete(copy)
        elif id(key) not in self.values.fresh and id(key) in self.values.sources:
            self.values.guards.add(Is(self.values.sources[id(key)], key))

    def has(self, copy: dict[Any, Any], key: Any) -> bool:
        self._pin_key(copy, key)
        self._guard_presence(self.partials.get(id(copy)), key)
        return dict.__contains__(copy, key)

    def forget_unread(self, copy: dict[Any, Any], key: Any) -> None:
        """Record that the value under a key is about to be replaced or deleted.

        The new value is written back in any case: the old one is not guarded, and may differ in another call.
        """
        self._pin_key(copy, key)
        partial = self.partials.get(id(copy))
        if partial is not None:
            partial.unread.discard(key)
        before = self.values.before.get(id(copy))
        if before is not None and key in before:
            before[key] = MISSING

    def set(self, copy: dict[Any, Any], key: Any, value: Any) -> None:
        self.forget_unread(copy, key)
        dict.__setitem__(copy, key, value)

    def delete(self, copy: dict[Any, Any], key: Any) -> None:
        if not self.has(copy, key):
            raise KeyError(key)
        self.forget_unread(copy, key)
        dict.__delitem__(copy, key)

    def length(self, copy: dict[Any, Any]) -> int:
        partial = self.partials.get(id(copy))
        if partial is not None and partial.guarded:
            self.values.guards.add(Length(partial.source, len(partial.before)))
        return dict.__len__(copy)

    def complete(self, copy: Any) -> None:
        """Adopt all values of a dict: the code that runs next may read any of them."""
        partial = self.partials.pop(id(copy), None)
        if partial is None:
            return
        self.unfinished.pop(id(copy), None)
        keys = tuple(partial.before)
        if all(map(is_constant, keys)):
            self.values.guards.add(Contains(partial.source, keys))
        else:
            self.values.guards.add(Length(partial.source, len(keys)))
            for index, key in enumerate(keys):
                self.guard_key(key, KeyOf(partial.source, index))
        for key in list(dict.keys(copy)):
            if not dict.__contains__(copy, key):
                raise Unsupported("a key of a dict has another hash than when it was stored")
            if key in partial.unread:
                dict.__setitem__(copy, key, self.adopt(dict.__getitem__(copy, key), partial.child(key)))

    def guard_key(self, key: Any, source: Source) -> None:
        if is_constant(key) or is_single(key) or next(tensors_in(key), None) is None:
            self.values.guards.add(Is(source, key))
        else:
            raise Unsupported("a dict of the caller has tensors as keys")

    def complete_all(self, values: Any) -> None:
        """Adopt all values of every dict that can be reached through containers from these values."""
        if not self.unfinished:
            return
        seen: set[int] = set()
        waiting = list(values)
        while waiting and self.unfinished:
            value = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if is_a(value, dict):
                self.complete(value)
                waiting.extend(dict.values(value))
            elif is_a(value, list | tuple | deque):
                waiting.extend(elements(value))
            elif type(value).__name__.startswith("dict_"):
                waiting.append(getattr(value, "mapping", None))
