"""FrameCache: the captured regions of one place in a function, and when to stop making more of them.

A number that varies between calls is not guarded; Python runs what reads it. A counter that a function holds,
or a number that `.item()` returned, would need a region for each of its values. A place that has used up its
regions on such values is captured once more without them: reading one is a break. Python then runs
until the number has left the stack, so that no region begins with it.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import defaultdict
from collections.abc import Hashable, Iterable
from itertools import chain, zip_longest
from types import CodeType
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.bytecode.program import NULL, Instruction
from torchrepro.frontend.graph_breaks import Where
from torchrepro.frontend.guards.function import GuardFunction
from torchrepro.frontend.guards.kinds import Is
from torchrepro.frontend.source import FrameState, Local, Source, StackSlot

if TYPE_CHECKING:
    from torchrepro.frontend.runtime.capture import Region

Sources = frozenset[Source]
_NUMBERS = (int, float, complex, str)
"""Strings vary like numbers. A `bool` has only two values."""


def is_number(value: Any) -> bool:
    return type(value) in _NUMBERS


def changing_for(guards: Iterable[GuardFunction], state: FrameState) -> Sources:
    """Return the sources of numbers whose guards fail, and of those that were never the same twice."""
    guards = list(guards)
    failing = [each.failing(state) for each in guards]
    found = {guard.source for guard in failing if isinstance(guard, Is) and is_number(guard.value)}
    values = defaultdict(list)
    for guard in chain.from_iterable(each.guards for each in guards):
        if isinstance(guard, Is) and is_number(guard.value):
            values[guard.source].append(guard.value)
    restless = {source for source, each in values.items() if len({*each}) == len(each) == len(guards)}
    return frozenset(found | restless if found else ())


def further_on(changing: Sources) -> Sources:
    """Return the sources that are also valid at later places of the function."""

    def on_stack(source: Source | None) -> bool:
        return isinstance(source, StackSlot) or (source is not None and on_stack(source.base))

    return frozenset(source for source in changing if not on_stack(source))


def has_new_number(stack: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    """Return whether `stack` has a number that was not there in `before`."""
    kept = zip_longest(stack, before[: len(stack)], fillvalue=NULL)
    return any(is_number(value) and value is not old for value, old in kept)


def variable_of(instruction: Instruction) -> Sources:
    """Return the variable that an instruction loads or stores."""
    known = instruction.name in ("LOAD_FAST", "STORE_FAST")
    return frozenset({Local(str(instruction.argument))} if known else ())


LIMIT = 8
"""Regions for one place. A place that needs more is likely to need a new one on every call."""


_TOLD = 3
"""How many differences a warning lists."""


class CaptureLimitWarning(UserWarning):
    """A place in a function was captured too often; Python runs it from now on."""


class FrameCache:
    """Regions in the order of their last use.

    Readers take no lock: they see the tuple of regions as it was; a writer replaces it by a new tuple.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.changing: Sources = frozenset()
        """Numbers that regions must not rely on."""
        self.entries: tuple[Region, ...] = ()
        self._opened = 0
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    @property
    def full(self) -> bool:
        return len(self.entries) >= self.limit

    def find(self, state: FrameState) -> Region | None:
        entries = self.entries
        for entry in entries:
            if entry.guards.check(state) is None:
                if entry is not entries[0]:
                    self.add(entry)
                return entry
        return None

    def add(self, entry: Region) -> None:
        """Move a region, or add a new one, to the front."""
        with self._lock:
            self.entries = (entry, *(each for each in self.entries if each is not entry))

    def misses(self, state: FrameState) -> list[str]:
        """Return why each entry misses, the most recently used first."""
        return [
            entry.guards.miss(state) or "fits now: something changed in between" for entry in self.entries
        ]

    def open_up(self, where: Where, state: FrameState) -> bool:
        """Drop the entries for single values of varying numbers; return whether that made room."""
        found = changing_for((entry.guards for entry in self.entries), state) - self.changing
        if not found or self._opened == self.limit:
            return False
        self.warn(where, state, "what reads a number that changes")
        with self._lock:
            self._opened += 1
            self.changing |= found
            self.entries = tuple(
                each
                for each in self.entries
                if not any(isinstance(guard, Is) and guard.source in found for guard in each.guards.guards)
            )
        return True

    def warn(self, where: Where, state: FrameState, what: str = "it") -> None:
        """Warn once that Python runs this place, or the part named by `what`, from now on."""
        with self._lock:
            first = what not in self._warned
            self._warned.add(what)
        if first:
            reasons = list(dict.fromkeys(self.misses(state)))
            told = [*reasons[:_TOLD], *([f"and {len(reasons) - _TOLD} more"] if reasons[_TOLD:] else ())]
            warnings.warn_explicit(
                f"{where} was captured {len(self.entries)} times; Python runs {what} from now on, "
                + "as calls differed:"
                + "".join(f"\n  {each}" for each in told)
                + f"\nMake what differs the same, or a tensor; or raise the limit of {self.limit}.",
                CaptureLimitWarning,
                where.file,
                where.line,
            )


_caches: dict[int, dict[Hashable, FrameCache]] = {}
# By identity: code objects compare by contents, and two equal ones may belong to different modules.


def caches_of(code: CodeType) -> dict[Hashable, FrameCache]:
    """Return the caches of all places in `code`. They are freed with it, if no entry refers to it."""
    found = _caches.get(id(code))
    if found is None:
        # `setdefault` is atomic: two threads get the same dict.
        found = _caches.setdefault(id(code), {})
        weakref.finalize(code, _caches.pop, id(code), None).atexit = False
    return found
