"""The kinds of guards: facts that must be so again for a captured region to be right. Data only.

What a check looks like is in `conditions.py`, what users read of it in `sentences.py`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, cast

import torch

from torchrepro.frontend.guards.ambient_facts import AmbientFacts as AmbientFacts
from torchrepro.frontend.guards.constants import token, token_or_identity
from torchrepro.frontend.guards.tensor_facts import TensorFacts as TensorFacts
from torchrepro.frontend.guards.tensor_facts import storage_places
from torchrepro.frontend.source import Local, Source

IDENTITY, SIZE, CONTENTS, SURROUNDINGS, TENSOR, ALL_TENSORS = range(6)
"""What a check costs. Cheap ones go first, so that a miss is found early."""


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """Equal if they say the same: values in them are compared as constants are, or by identity."""

    cost: ClassVar[int] = IDENTITY

    @property
    def reads(self) -> tuple[Source, ...]:
        """Where a check looks."""
        return ()

    def identity(self) -> Hashable:
        """What two guards that say the same have in common."""
        return type(self), *(_identity(getattr(self, each.name)) for each in fields(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Guard) and self.identity() == other.identity()

    def __hash__(self) -> int:
        return hash(self.identity())


@dataclass(frozen=True, slots=True, eq=False)
class OfSource(Guard):
    source: Source

    @property
    def reads(self) -> tuple[Source, ...]:
        return (self.source,)


@dataclass(frozen=True, slots=True, eq=False)
class Is(OfSource):
    """The same object. The guard keeps it alive, so no other can take its place."""

    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class Equal(OfSource):
    """A constant: the same type exactly, and a value that no program can tell from this one."""

    value: Any

    def __post_init__(self) -> None:
        token(self.value)  # raises for what is no constant


@dataclass(frozen=True, slots=True, eq=False)
class TypeIs(OfSource):
    kind: type


@dataclass(frozen=True, slots=True, eq=False)
class SameObject(OfSource):
    """One object under two names."""

    other: Source

    @property
    def reads(self) -> tuple[Source, ...]:
        return self.source, self.other


@dataclass(frozen=True, slots=True, eq=False)
class Unbound(OfSource):
    """A local variable that has no value."""

    source: Local

    @property
    def reads(self) -> tuple[Source, ...]:
        return ()


@dataclass(frozen=True, slots=True, eq=False)
class EmptyCell(OfSource):
    """A variable shared between functions that has no value."""


@dataclass(frozen=True, slots=True, eq=False)
class Length(OfSource):
    cost: ClassVar[int] = SIZE
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class HasKey(OfSource):
    cost: ClassVar[int] = SIZE
    key: Any


@dataclass(frozen=True, slots=True, eq=False)
class LacksKey(OfSource):
    cost: ClassVar[int] = SIZE
    key: Any


@dataclass(frozen=True, slots=True, eq=False)
class HasInstanceValue(OfSource):
    cost: ClassVar[int] = SIZE
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class LacksAttribute(OfSource):
    """A class that defines nothing under a name, and inherits nothing; or an object with an empty slot."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class LacksInstanceValue(OfSource):
    """Nothing in the instance hides what its class has under this name."""

    cost: ClassVar[int] = SIZE
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class LacksMember(OfSource):
    """A module has no parameter, buffer or child of this name."""

    cost: ClassVar[int] = SIZE
    table: str
    """`_parameters`, `_buffers` or `_modules`."""
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Keys(OfSource):
    """The keys of a dict, which are constants, in order."""

    cost: ClassVar[int] = CONTENTS
    keys: tuple[Any, ...]

    def __post_init__(self) -> None:
        token(self.keys)  # raises for what is no constant


@dataclass(frozen=True, slots=True, eq=False)
class SetEquals(OfSource):
    """The members of a set: constants, or objects by identity."""

    cost: ClassVar[int] = CONTENTS
    value: frozenset[Any]


@dataclass(frozen=True, slots=True, eq=False)
class NoHooks(OfSource):
    """A module without forward and backward hooks of any kind."""

    cost: ClassVar[int] = CONTENTS


@dataclass(frozen=True, slots=True, eq=False)
class NoGlobalHooks(Guard):
    """No hooks for all modules (`torch.nn.modules.module.register_module_forward_hook` and others)."""

    cost: ClassVar[int] = SURROUNDINGS


@dataclass(frozen=True, slots=True, eq=False)
class Answers(Guard):
    """A question that has the same answer: how many devices there are, what a function has memoised."""

    cost: ClassVar[int] = SURROUNDINGS
    function: Any
    args: tuple[Any, ...]
    value: Any
    keywords: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class AmbientIs(Guard):
    cost: ClassVar[int] = SURROUNDINGS
    facts: AmbientFacts


@dataclass(frozen=True, slots=True, eq=False)
class TensorLike(OfSource):
    cost: ClassVar[int] = TENSOR
    facts: TensorFacts


@dataclass(frozen=True, slots=True, eq=False)
class StorageOffset(OfSource):
    """Where in its memory a tensor begins: of interest only where a program asks for it."""

    cost: ClassVar[int] = TENSOR
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class OfTensors(Guard):
    """A guard on how tensors relate to each other."""

    cost: ClassVar[int] = ALL_TENSORS
    sources: tuple[Source, ...]

    @property
    def reads(self) -> tuple[Source, ...]:
        return self.sources


@dataclass(frozen=True, slots=True, eq=False)
class Distinct(OfTensors):
    """All of them are different objects."""


@dataclass(frozen=True, slots=True, eq=False)
class SharedStorage(OfTensors):
    """Which of them share memory: a write to one is then seen in another, and the graph relies on it."""

    pattern: tuple[int, ...]
    """The number of each one's storage, in the order of appearance; storages that overlap count as one."""
    offsets: tuple[int, ...] = ()
    """Where given: how far in bytes each lies from the first in its storage, so that overlaps stay."""

    @classmethod
    def of(cls, sources: tuple[Source, ...], tensors: tuple[torch.Tensor, ...]) -> SharedStorage:
        return cls(sources, *storage_places(tensors))


def _identity(value: Any) -> Hashable:
    # Asks the type: `isinstance` looks at `__class__` too, which may run code of the user's.
    if issubclass(type(value), Source | TensorFacts | AmbientFacts):
        return cast(Hashable, value)
    return tuple(map(_identity, value)) if type(value) is tuple else token_or_identity(value)
