"""Guards: what a trace relied on, in the order in which it was noticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torchrepro.frontend.codegen.writer import Kept
from torchrepro.frontend.guards.function import GuardFunction
from torchrepro.frontend.guards.kinds import Guard


@dataclass(slots=True)
class Guards:
    kept: Kept
    """The objects behind `Held` sources."""
    _guards: dict[Guard, None] = field(default_factory=dict)

    def add(self, guard: Guard) -> None:
        self._guards.setdefault(guard)

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._guards)

    def __len__(self) -> int:
        return len(self._guards)


def compile_guards(guards: Guards) -> GuardFunction:
    return GuardFunction.of(guards, guards.kept)
