"""Definitions in the order in which a module must run them: what one needs while it runs goes before it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from torchrepro.nouns.errors import CannotSerialise

Key = TypeVar("Key", bound=Hashable)


class Definitions(Generic[Key]):
    """Calls `define` once for each key: at once where somebody needs it, else after everything else."""

    def __init__(self, define: Callable[[Key], None]) -> None:
        self._define = define
        self._waiting: dict[Key, None] = {}
        self._started: set[Key] = set()
        self._done: set[Key] = set()

    def later(self, key: Key) -> None:
        """It is needed when functions are called; anywhere in the text will do."""
        if key not in self._done and key not in self._started:
            self._waiting[key] = None

    def now(self, key: Key) -> None:
        """It is needed by the next statement, which may call it: with all that it needs in its turn."""
        if key not in self._done:
            others = set(self._waiting) - {key}
            try:
                self._begin(key)
            except _StillBeingDefined:
                if self._started:
                    raise
                raise _need_one_another([key]) from None  # nothing is left that could be defined first
            self.those_waiting(besides=others)

    def _begin(self, key: Key) -> None:
        if key in self._started:
            raise _StillBeingDefined(key)
        self._started.add(key)
        self._waiting.pop(key, None)
        try:
            self._define(key)
        except _StillBeingDefined:
            self._waiting[key] = None
            raise
        finally:
            self._started.discard(key)
        self._done.add(key)

    def those_waiting(self, besides: Iterable[Key] = ()) -> None:
        """Everything that waits, except what needs a definition that has only begun."""
        passed_over = set(besides)
        while ready := [key for key in self._waiting if key not in passed_over]:
            try:
                self._begin(ready[0])
            except _StillBeingDefined:
                passed_over.add(ready[0])

    def all(self) -> None:
        """Everything, to the last."""
        while self._waiting:
            before = set(self._waiting)
            self.those_waiting()
            if set(self._waiting) == before:
                raise _need_one_another(before)


class _StillBeingDefined(Exception):
    """A definition needs another one that is waiting for it; it is tried again later."""


def _need_one_another(keys: Iterable[Hashable]) -> CannotSerialise:
    return CannotSerialise(
        f"the definitions of {', '.join(map(str, keys))} need one another before they exist",
        next_step="define one of them inside a function",
    )
