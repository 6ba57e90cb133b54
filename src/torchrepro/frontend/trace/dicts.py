"""Dicts of a trace: copies of the user's, whose values are adopted one by one, as they are read."""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchrepro.frontend.codegen.objects import dict_items, elements
from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.guards.constants import is_constant
from torchrepro.frontend.guards.kinds import Equal, HasKey, Is, Keys, LacksKey, Length
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.source import KeyOf, Source
from torchrepro.frontend.trace.classes import MISSING, is_single
from torchrepro.frontend.trace.fakes import tensors_in
from torchrepro.frontend.trace.values import Values


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


class Dicts:
    def __init__(self, values: Values, adopt: Callable[[Any, Source], Any]) -> None:
        self.values, self.adopt = values, adopt
        self.partials: dict[int, Partial] = {}
        self.unfinished: dict[int, Partial] = {}

    def add(
        self,
        source: Source,
        original: dict[Any, Any],
        copy: dict[Any, Any],
        child: Callable[[Any], Source],
        *,
        guarded: bool = True,
    ) -> Partial:
        if type(original) is not dict:
            original = dict(dict_items(original))
        partial = Partial(source, original, copy, child, set(original), guarded)
        self.values.alive.append(partial)
        self.partials[id(copy)] = partial
        if guarded:
            self.unfinished[id(copy)] = partial
        return partial

    def get(self, copy: dict[Any, Any], key: Any) -> Any:
        """The value under a key of a dict of the trace, adopted by now; `MISSING` where there is none."""
        self._pin_key(copy, key)
        partial = self.partials.get(id(copy))
        if partial is None:
            return dict.get(copy, key, MISSING)
        if key in partial.unread:
            # A key that is equal but another object (`1` and `True`) reads what is there.
            partial.unread.discard(key)
            if hasattr(type(copy), "__missing__"):
                self.values.guards.add(HasKey(partial.source, key))  # reading it would make it
            adopted = self.adopt(dict.__getitem__(copy, key), partial.child(key))
            dict.__setitem__(copy, key, adopted)
            return adopted
        value = dict.get(copy, key, MISSING)
        if value is MISSING and partial.guarded:
            if key in partial.original:
                self.values.guards.add(HasKey(partial.source, key))
            else:
                self.values.guards.add(LacksKey(partial.source, key))
        return value

    def _pin_key(self, copy: dict[Any, Any], key: Any) -> None:
        """An object that is used as a key counts by its identity."""
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
        partial = self.partials.get(id(copy))
        if partial is not None and partial.guarded:
            kind = HasKey if key in partial.original else LacksKey
            self.values.guards.add(kind(partial.source, key))
        return dict.__contains__(copy, key)

    def forget_unread(self, copy: dict[Any, Any], key: Any) -> None:
        """What was under a key is about to be replaced or deleted.

        The new value is written back in any case: nobody has read what another call will find there.
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
            self.values.guards.add(Length(partial.source, len(partial.original)))
        return dict.__len__(copy)

    def complete(self, copy: Any) -> None:
        """Adopt all that a dict contains: what runs now may look at any of it."""
        partial = self.partials.pop(id(copy), None)
        if partial is None:
            return
        self.unfinished.pop(id(copy), None)
        keys = tuple(partial.original)
        if all(map(is_constant, keys)):
            self.values.guards.add(Keys(partial.source, keys))
        else:
            self.values.guards.add(Length(partial.source, len(keys)))
            for index, key in enumerate(keys):
                self.guard_key(key, KeyOf(partial.source, index))
        for key in dict.fromkeys(dict.keys(copy)):
            if key in partial.unread:
                dict.__setitem__(copy, key, self.adopt(dict.__getitem__(copy, key), partial.child(key)))

    def guard_key(self, key: Any, source: Source) -> None:
        if is_constant(key):
            self.values.guards.add(Equal(source, key))
        elif is_single(key) or next(tensors_in(key), None) is None:
            self.values.guards.add(Is(source, key))
        else:
            raise Break(BreakKind.UNSUPPORTED, "a dict of the caller has tensors as keys")

    def complete_all(self, values: Any) -> None:
        """Complete every dict that can be reached through containers from these values."""
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
            elif is_a(value, list | tuple | collections.deque):
                waiting.extend(elements(value))
            elif type(value).__name__.startswith("dict_"):
                waiting.append(getattr(value, "mapping", None))
