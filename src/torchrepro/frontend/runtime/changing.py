"""Changing numbers: a value that is another in each call is not guarded; Python runs what reads it.

A counter that a function keeps, or a number that `.item()` gave, would need a region for each of its values.
A place that has used up its regions on such values is captured once more without them: reading one is a
break. Python then goes on to where the number has left the stack, so that no region begins with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import Any

from torchrepro.frontend.bytecode.program import NULL, Instruction
from torchrepro.frontend.frame_state import FrameState
from torchrepro.frontend.guards.function import GuardFunction
from torchrepro.frontend.guards.kinds import Equal
from torchrepro.frontend.source import Local, Source, StackSlot

Sources = frozenset[Source]
_NUMBERS = (int, float, complex, str)
"""Text changes as numbers do. A `bool` has two values, which is few."""


def is_number(value: Any) -> bool:
    return type(value) in _NUMBERS


def changing_for(guards: Iterable[GuardFunction], state: FrameState) -> Sources:
    """The numbers for which guards of a place do not hold, and others that were never the same twice."""
    guards = list(guards)
    failing = [each.failing(state) for each in guards]
    found = {guard.source for guard in failing if isinstance(guard, Equal) and is_number(guard.value)}
    values = defaultdict(list)
    for guard in chain.from_iterable(each.guards for each in guards):
        if isinstance(guard, Equal) and is_number(guard.value):
            values[guard.source].append(guard.value)
    restless = {source for source, each in values.items() if len({*each}) == len(each) == len(guards)}
    return frozenset(found | restless if found else ())


def relies_on(guards: GuardFunction, changing: Sources) -> bool:
    return any(isinstance(guard, Equal) and guard.source in changing for guard in guards.guards)


def further_on(changing: Sources) -> Sources:
    """Those that are found in the same way at later places of the function."""
    return frozenset(source for source in changing if not _on_stack(source))


def _on_stack(source: Source | None) -> bool:
    return isinstance(source, StackSlot) or (source is not None and _on_stack(source.base))


def has_new_number(stack: tuple[Any, ...], before: tuple[Any, ...]) -> bool:
    """Whether a number has come onto a stack."""
    kept = zip_longest(stack, before[: len(stack)], fillvalue=NULL)
    return any(is_number(value) and value is not old for value, old in kept)


def variable_of(instruction: Instruction) -> Sources:
    """The variable that an instruction reads a number from or keeps it in."""
    known = instruction.name in ("LOAD_FAST", "STORE_FAST")
    return frozenset({Local(str(instruction.argument))} if known else ())
