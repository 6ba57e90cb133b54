"""GuardFunction: decides whether a captured region may be used again, and can say why not."""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

from torchrepro.frontend.codegen.writer import Kept
from torchrepro.frontend.frame_state import FrameState
from torchrepro.frontend.guards.kinds import Guard
from torchrepro.frontend.guards.sentences import miss_sentence, sentence
from torchrepro.frontend.guards.text import in_order, write_check, write_search

_Search = Callable[[FrameState], tuple[int, tuple[Any, ...], Exception | None] | None]
_numbers = count(1)


@dataclass(frozen=True, eq=False)
class GuardFunction:
    guards: tuple[Guard, ...]
    """In the order in which they are checked."""
    kept: Kept = field(repr=False)
    text: str = field(repr=False)
    holds: Callable[[FrameState], bool] = field(repr=False)
    """The generated function itself: one Python call less. Never raises an `Exception`."""

    @classmethod
    def of(cls, guards: Iterable[Guard], kept: Kept) -> GuardFunction:
        ordered = in_order(guards)
        text, namespace = write_check(ordered, kept)
        return cls(tuple(ordered), kept, text, _executed("holds", text, namespace))

    def miss(self, state: FrameState) -> str | None:
        """The first guard that fails, as a sentence; None if all hold."""
        result = self._search(state)
        if result is None:
            return None
        index, values, error = result
        return miss_sentence(self.guards[index], values, error)

    def failing(self, state: FrameState) -> Guard | None:
        """The first guard that fails."""
        result = self._search(state)
        return None if result is None else self.guards[result[0]]

    def sentences(self) -> list[str]:
        """One line per guard, for people."""
        return list(map(sentence, self.guards))

    @cached_property
    def _search(self) -> _Search:
        search: _Search = _executed("search", *write_search(self.guards, self.kept))
        return search


def _executed(name: str, text: str, namespace: dict[str, Any]) -> Any:
    """The function that `text` defines. Its lines are known to tracebacks and profilers while it exists."""
    file = f"<torchrepro guards {next(_numbers)}>"
    exec(compile(text, file, "exec"), namespace)
    function = namespace.pop(name)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    weakref.finalize(function, linecache.cache.pop, file, None).atexit = False
    return function
