"""The kinds of guards: facts that must be so again for a captured region to be right.

Each kind has the conditions that generated code checks, and the words in which users read of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import CellType
from typing import Any, ClassVar

import torch
from torch.nn.modules import module as nn_module

from torchrepro.frontend.codegen.writer import LITERALS, Writer
from torchrepro.frontend.guards.ambient_facts import AmbientFacts as AmbientFacts
from torchrepro.frontend.guards.constants import (
    by_identity,
    same,
    same_keys,
    same_members,
    shown,
    shown_all,
    shown_source,
    token,
    type_name,
)
from torchrepro.frontend.guards.guard import (
    ALL_TENSORS,
    CONTENTS,
    SIZE,
    SURROUNDINGS,
    TENSOR,
    Aspect,
    Guard,
    OfSource,
)
from torchrepro.frontend.guards.tensor_facts import TensorFacts as TensorFacts
from torchrepro.frontend.guards.tensor_facts import storage_places
from torchrepro.frontend.source import Attribute, InstanceValue, Local, Source

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{table}" for table in HOOKS)
"""Tables of a module, and of all modules in `torch.nn.modules.module`. Checked on torch 2.11 to 2.15."""

_EMPTY_CELL = CellType()


@dataclass(frozen=True, slots=True, eq=False)
class Is(OfSource):
    """The same object. The guard keeps it alive, so no other can take its place."""

    value: Any

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{names[0]} is not {_object(self.value, writer)}"]

    def aspect(self) -> Aspect:
        return "", shown(self.value), shown


@dataclass(frozen=True, slots=True, eq=False)
class Equal(OfSource):
    """A constant: the same type exactly, and a value that no program can tell from this one."""

    value: Any

    def __post_init__(self) -> None:
        token(self.value)  # raises for what is no constant

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        x, value, kind = names[0], self.value, type(self.value)
        if by_identity(value):
            return [f"{x} is not {_object(value, writer)}"]
        if kind is float and math.isfinite(value) and value != 0.0:
            return [_is_no(kind, x, writer), f"{x} != {value!r}"]
        if kind in LITERALS or kind is torch.device:
            return [_is_no(kind, x, writer), f"{x} != {_constant(value, writer)}"]
        expected = writer.held(value, f"{kind.__name__}_{shown(value)}"[:40])
        return [f"not {writer.held(same, 'same')}({x}, {expected})"]

    def aspect(self) -> Aspect:
        return "", shown(self.value), shown


@dataclass(frozen=True, slots=True, eq=False)
class TypeIs(OfSource):
    kind: type

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [_is_no(self.kind, names[0], writer)]

    def aspect(self) -> Aspect:
        return "type", type_name(self.kind), lambda found: type_name(type(found))


@dataclass(frozen=True, slots=True, eq=False)
class SameObject(OfSource):
    """One object under two names."""

    other: Source

    @property
    def reads(self) -> tuple[Source, ...]:
        return self.source, self.other

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{names[0]} is not {names[1]}"]

    def aspect(self) -> Aspect:
        return "object", f"that of {shown_source(self.other)}", lambda *_: "another"


@dataclass(frozen=True, slots=True, eq=False)
class Unbound(OfSource):
    """A local variable that has no value."""

    source: Local

    @property
    def reads(self) -> tuple[Source, ...]:
        return ()

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{self.source.name!r} in L"]

    def aspect(self) -> Aspect:
        return "variable", "unbound", lambda *_: "bound"


@dataclass(frozen=True, slots=True, eq=False)
class EmptyCell(OfSource):
    """A variable shared between functions that has no value."""

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        # An empty cell equals no full one; contents are compared only where both have some.
        return [f"{names[0]} != {writer.held(_EMPTY_CELL, 'empty_cell')}"]

    def aspect(self) -> Aspect:
        return "variable", "unbound", lambda *_: "bound"


@dataclass(frozen=True, slots=True, eq=False)
class Length(OfSource):
    cost: ClassVar[int] = SIZE
    count: int

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{writer.held(len, 'len')}({names[0]}) != {self.count}"]

    def aspect(self) -> Aspect:
        return "length", str(self.count), lambda found: str(len(found))


@dataclass(frozen=True, slots=True, eq=False)
class HasKey(OfSource):
    cost: ClassVar[int] = SIZE
    key: Any

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{_constant(self.key, writer)} not in {names[0]}"]

    def aspect(self) -> Aspect:
        return shown(self.key), "present", lambda _: "absent"


@dataclass(frozen=True, slots=True, eq=False)
class LacksKey(OfSource):
    cost: ClassVar[int] = SIZE
    key: Any

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{_constant(self.key, writer)} in {names[0]}"]

    def aspect(self) -> Aspect:
        return shown(self.key), "absent", lambda _: "present"


@dataclass(frozen=True, slots=True, eq=False)
class LacksAttribute(OfSource):
    """A class that defines nothing under a name, and inherits nothing; or an object with an empty slot."""

    name: str

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{writer.held(hasattr, 'hasattr')}({names[0]}, {self.name!r})"]

    def aspect(self) -> Aspect:
        return shown(self.name), "absent", lambda _: "present"


@dataclass(frozen=True, slots=True, eq=False)
class Keys(OfSource):
    """The keys of a dict, which are constants, in order."""

    cost: ClassVar[int] = CONTENTS
    keys: tuple[Any, ...]

    def __post_init__(self) -> None:
        token(self.keys)  # raises for what is no constant

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        # Held, not written down: the keys of the very dict are then the very objects, and compare fast.
        keys = writer.held(self.keys, f"keys_of_{names[0]}")
        return [f"not {writer.held(same_keys, 'same_keys')}({names[0]}, {keys})"]

    def aspect(self) -> Aspect:
        return "tuple of keys", shown_all(self.keys), shown_all


@dataclass(frozen=True, slots=True, eq=False)
class SetEquals(OfSource):
    """The members of a set: constants, or objects by identity."""

    cost: ClassVar[int] = CONTENTS
    value: frozenset[Any]

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        members = writer.held(self.value, f"members_of_{names[0]}")
        return [f"not {writer.held(same_members, 'same_members')}({names[0]}, {members})"]

    def aspect(self) -> Aspect:
        return "set of members", shown_all(self.value), shown_all


@dataclass(frozen=True, slots=True, eq=False)
class NoHooks(OfSource):
    """A module without forward and backward hooks of any kind."""

    cost: ClassVar[int] = CONTENTS

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{names[0]}.{table}" for table in HOOKS]

    def aspect(self) -> Aspect:
        return "set of hooks", "empty", lambda module: _filled(module, HOOKS)


@dataclass(frozen=True, slots=True, eq=False)
class NoGlobalHooks(Guard):
    """No hooks for all modules (`torch.nn.modules.module.register_module_forward_hook` and others)."""

    cost: ClassVar[int] = SURROUNDINGS

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{writer.held(nn_module, 'nn_module')}.{table}" for table in GLOBAL_HOOKS]

    def about(self) -> str:
        return "torch.nn"

    def aspect(self) -> Aspect:
        return "set of hooks", "empty", lambda: _filled(nn_module, GLOBAL_HOOKS)


@dataclass(frozen=True, slots=True, eq=False)
class Answers(Guard):
    """A question that has the same answer: how many devices there are, what a function has memoised."""

    cost: ClassVar[int] = SURROUNDINGS
    function: Any
    args: tuple[Any, ...]
    value: Any
    keywords: tuple[tuple[str, Any], ...] = ()

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        given = [_constant(each, writer) for each in self.args]
        given += [f"{name}={_constant(each, writer)}" for name, each in self.keywords]
        call = f"{writer.held(self.function, self.function.__name__)}({', '.join(given)})"
        return [f"not {writer.held(same, 'same')}({call}, {writer.held(self.value, 'answer')})"]

    def about(self) -> str:
        return f"{self.function.__module__}.{self.function.__name__}({', '.join(map(shown, self.args))})"

    def aspect(self) -> Aspect:
        return "answer", shown(self.value), lambda: shown(self.function(*self.args, **dict(self.keywords)))


@dataclass(frozen=True, slots=True, eq=False)
class AmbientIs(Guard):
    cost: ClassVar[int] = SURROUNDINGS
    facts: AmbientFacts

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{writer.held(AmbientFacts.now, 'ambient_now')}() != {writer.held(self.facts, 'ambient')}"]

    def about(self) -> str:
        return "torch"

    def expected(self) -> str:
        known = {name: value for name, value in self.facts._asdict().items() if value}
        return ", ".join(f"{_words(name)} is {shown(value)}" for name, value in known.items())

    def difference(self, values: Sequence[Any]) -> str:
        return _changes(self.facts._asdict(), AmbientFacts.now()._asdict())


@dataclass(frozen=True, slots=True, eq=False)
class TensorLike(OfSource):
    cost: ClassVar[int] = TENSOR
    facts: TensorFacts

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        x, facts = names[0], self.facts

        def named(value: Any) -> str:
            return writer.held(value, str(value).removeprefix("torch."))

        def unless(expected: bool, condition: str) -> str:
            return f"not {condition}" if expected else condition

        return [
            _is_no(facts.kind, x, writer),
            f"{x}.dtype is not {named(facts.dtype)}",
            f"{x}.device != {named(facts.device)}",
            f"{x}.layout is not {named(facts.layout)}",
            f"{x}.shape != {facts.shape}",
            *([f"{x}.stride() != {facts.stride}"] if facts.stride is not None else []),
            unless(facts.requires_grad, f"{x}.requires_grad"),
            *([unless(facts.conjugated, f"{x}.is_conj()")] if facts.dtype.is_complex else []),
            unless(facts.negated, f"{x}.is_neg()"),
            unless(facts.inference, f"{x}.is_inference()"),
        ]

    def expected(self) -> str:
        return str(self.facts)

    def difference(self, values: Sequence[Any]) -> str:
        kind = type(values[0])
        if kind is not self.facts.kind:
            return f"type is {type_name(kind)}, was {type_name(self.facts.kind)}"
        return _changes(self.facts._asdict(), TensorFacts.of(values[0])._asdict())


@dataclass(frozen=True, slots=True, eq=False)
class StorageOffset(OfSource):
    """Where in its memory a tensor begins: of interest only where a program asks for it."""

    cost: ClassVar[int] = TENSOR
    offset: int

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{names[0]}.storage_offset() != {self.offset}"]

    def aspect(self) -> Aspect:
        return "storage offset", str(self.offset), lambda tensor: str(tensor.storage_offset())


@dataclass(frozen=True, slots=True, eq=False)
class Distinct(Guard):
    """All of them are different objects."""

    cost: ClassVar[int] = ALL_TENSORS
    sources: tuple[Source, ...]

    @property
    def reads(self) -> tuple[Source, ...]:
        return self.sources

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        identities = ", ".join(f"{writer.held(id, 'id')}({name})" for name in names)
        return [f"{writer.held(len, 'len')}({{{identities}}}) != {len(names)}"]

    def aspect(self) -> Aspect:
        return "object", "one for each", lambda *_: "shared"


@dataclass(frozen=True, slots=True, eq=False)
class SharedStorage(Guard):
    """Which of them share memory: a write to one is then seen in another, and the graph relies on it."""

    cost: ClassVar[int] = ALL_TENSORS
    sources: tuple[Source, ...]
    pattern: tuple[int, ...]
    """The number of each one's storage, in the order of appearance; storages that overlap count as one."""
    offsets: tuple[int, ...] = ()
    """Where given: how far in bytes each lies from the first in its storage, so that overlaps stay."""

    @classmethod
    def of(cls, sources: tuple[Source, ...], tensors: tuple[torch.Tensor, ...]) -> SharedStorage:
        return cls(sources, *storage_places(tensors))

    @property
    def reads(self) -> tuple[Source, ...]:
        return self.sources

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        found = f"{writer.held(storage_places, 'storage_places')}([{', '.join(names)}])"
        expected = (self.pattern, self.offsets)
        return [f"{found} != {expected}" if self.offsets else f"{found}[0] != {self.pattern}"]

    def aspect(self) -> Aspect:
        def shown_places(pattern: tuple[int, ...], offsets: tuple[int, ...]) -> str:
            return f"{pattern} at {offsets}" if offsets else str(pattern)

        before = shown_places(self.pattern, self.offsets)
        return "storage", before, lambda *tensors: shown_places(*storage_places(tensors))


def has_instance_value(source: Source, name: str) -> HasKey:
    return HasKey(Attribute(source, "__dict__"), name)


def lacks_instance_value(source: Source, name: str) -> LacksKey:
    """Return the guard that nothing in an instance hides what its class has under a name."""
    return LacksKey(Attribute(source, "__dict__"), name)


def lacks_member(source: Source, table: str, name: str) -> LacksKey:
    """Return the guard that a module has no parameter, buffer or child of a name."""
    return LacksKey(InstanceValue(source, table), name)


def _changes(before: dict[str, Any], now: dict[str, Any]) -> str:
    return ", ".join(
        f"{_words(name)} is {shown(now[name])}, was {shown(before[name])}"
        for name in now
        if now[name] != before[name]
    )


def _filled(owner: Any, tables: tuple[str, ...]) -> str:
    return ", ".join(table.strip("_") for table in tables if getattr(owner, table))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _is_no(kind: type, x: str, writer: Writer) -> str:
    return f"{writer.held(type, 'type')}({x}) is not {writer.held(kind, type_name(kind))}"


def _object(value: Any, writer: Writer) -> str:
    """Return the object itself: a literal only where equal ones are one object."""
    return writer.constant(value, shown(value)) if by_identity(value) else writer.held(value, shown(value))


def _constant(value: Any, writer: Writer) -> str:
    try:
        return writer.constant(value, shown(value))
    except ValueError:  # Python writes no integers of thousands of digits
        return writer.held(value, shown(value))
