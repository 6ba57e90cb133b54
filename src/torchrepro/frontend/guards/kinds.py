"""Guards: facts that must hold again for a captured region to be valid.

Each kind has the conditions that generated code checks, and the wording of messages about it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields
from types import CellType
from typing import Any, ClassVar, cast

import torch

from torchrepro.frontend.codegen.writer import LITERALS, Writer
from torchrepro.frontend.guards.constants import (
    by_identity,
    is_constant,
    same,
    same_keys,
    same_members,
    shown,
    shown_all,
    shown_source,
    token,
    token_or_identity,
    type_name,
)
from torchrepro.frontend.source import Attribute, Held, Local, Source
from torchrepro.torch_api.facts import AmbientFacts as AmbientFacts
from torchrepro.torch_api.facts import TensorFacts as TensorFacts
from torchrepro.torch_api.facts import storage_places

IDENTITY, SIZE, CONTENTS, SURROUNDINGS, TENSOR, ALL_TENSORS = range(6)
"""What a check costs. Cheap ones go first, so that a miss is found early."""

Aspect = tuple[str, str, Callable[..., str]]
"""What is guarded, how it was, and a function that describes how it is now."""

_GONE = (KeyError, AttributeError, IndexError)


@dataclass(frozen=True, slots=True, eq=False)
class Guard:
    """Equal if they check the same: values in them are compared as constants are, or by identity."""

    cost: ClassVar[int] = IDENTITY
    source: Source
    others: tuple[Source, ...] = field(default=(), kw_only=True)
    """Of a guard on several objects."""

    @property
    def reads(self) -> tuple[Source, ...]:
        """The sources that a check reads."""
        return self.source, *self.others

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        """Return conditions in Python, evaluated in order: any of them is a miss.

        `names` are the variables that hold what is at `reads`. No condition runs code of the user's if those
        before it are false and the guards on the bases of its sources hold.
        """
        raise NotImplementedError

    def about(self) -> str:
        return ", ".join(map(shown_source, (self.source, *self.others)))

    def aspect(self) -> Aspect:
        raise NotImplementedError

    def expected(self) -> str:
        aspect, before, _ = self.aspect()
        return f"{aspect} is {before}".lstrip()

    def difference(self, values: Sequence[Any]) -> str:
        """Return how what is at `reads` differs from what is expected."""
        aspect, before, look = self.aspect()
        now = look(*values)
        now = now if now != before else f"another {now.removeprefix('a ')}"
        return f"{aspect} is {now}, was {before}".lstrip()

    def sentence(self) -> str:
        """Return the fact as a message: `argument x: length is 2`."""
        return f"{self.about()}: {self.expected()}"

    def miss_sentence(self, values: Sequence[Any], error: Exception | None) -> str:
        """Return `argument x: length is 3, was 2`, given the values at `reads` or the error of the check."""
        try:
            if error is None:
                return f"{self.about()}: {self.difference(values)}"
        except Exception as another:  # an object that behaves differently each time
            error = another
        fact = "is no longer there" if isinstance(error, _GONE) else "cannot be read"
        return f"{self.about()}: {fact} ({type(error).__name__}); before, {self.expected()}"

    def identity(self) -> Hashable:
        """Return a key that is equal for guards that check the same."""
        return type(self), *(_identity(getattr(self, each.name)) for each in fields(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Guard) and self.identity() == other.identity()

    def __hash__(self) -> int:
        return hash(self.identity())


def _identity(value: Any) -> Hashable:
    # By the type: `isinstance` reads `__class__` too, which may run code of the user's.
    if issubclass(type(value), Source | TensorFacts | AmbientFacts):
        return cast(Hashable, value)
    return tuple(map(_identity, value)) if type(value) is tuple else token_or_identity(value)


class Guards(dict[Guard, None]):
    """What a trace relied on, in the order in which it was noticed."""

    def add(self, guard: Guard) -> None:
        self.setdefault(guard)


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{table}" for table in HOOKS)
"""Tables of a module, and of all modules in `torch.nn.modules.module`. Checked on torch 2.11 to 2.15."""

_EMPTY_CELL = CellType()


@dataclass(frozen=True, slots=True, eq=False)
class Is(Guard):
    """The same object, which the guard keeps alive; or a constant that no program can tell from this one."""

    value: Any

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        x, value, kind = names[0], self.value, type(self.value)
        if by_identity(value) or not is_constant(value):
            return [f"{x} is not {_object(value, writer)}"]
        if kind in LITERALS or kind is torch.device or (kind is float and math.isfinite(value) and value):
            return [_is_no(kind, x, writer), f"{x} != {writer.constant(value, shown(value))}"]
        expected = writer.held(value, f"{kind.__name__}_{shown(value)}"[:40])
        return [f"not {writer.held(same, 'same')}({x}, {expected})"]

    def aspect(self) -> Aspect:
        return "", shown(self.value), shown


@dataclass(frozen=True, slots=True, eq=False)
class TypeIs(Guard):
    kind: type

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [_is_no(self.kind, names[0], writer)]

    def aspect(self) -> Aspect:
        return "type", type_name(self.kind), lambda found: type_name(type(found))


@dataclass(frozen=True, slots=True, eq=False)
class Unbound(Guard):
    """A variable that has no value: a local one, or one shared between functions, given its cell."""

    @property
    def reads(self) -> tuple[Source, ...]:
        return () if isinstance(self.source, Local) else (self.source,)

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        if isinstance(self.source, Local):
            return [f"{self.source.name!r} in L"]
        # An empty cell equals no full one; contents are compared only where both are full.
        return [f"{names[0]} != {writer.held(_EMPTY_CELL, 'empty_cell')}"]

    def aspect(self) -> Aspect:
        return "variable", "unbound", lambda *_: "bound"


@dataclass(frozen=True, slots=True, eq=False)
class Length(Guard):
    cost: ClassVar[int] = SIZE
    count: int

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{writer.held(len, 'len')}({names[0]}) != {self.count}"]

    def aspect(self) -> Aspect:
        return "length", str(self.count), lambda found: str(len(found))


@dataclass(frozen=True, slots=True, eq=False)
class HasKey(Guard):
    """Whether a container has a key."""

    cost: ClassVar[int] = SIZE
    key: Any
    present: bool = True

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [
            f"{writer.constant(self.key, shown(self.key))} {'not in' if self.present else 'in'} {names[0]}"
        ]

    def aspect(self) -> Aspect:
        before, now = ("present", "absent") if self.present else ("absent", "present")
        return shown(self.key), before, lambda _: now


@dataclass(frozen=True, slots=True, eq=False)
class LacksAttribute(Guard):
    """A class that defines nothing under a name, and inherits nothing; or an object with an empty slot."""

    name: str

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{writer.held(hasattr, 'hasattr')}({names[0]}, {self.name!r})"]

    def aspect(self) -> Aspect:
        return shown(self.name), "absent", lambda _: "present"


@dataclass(frozen=True, slots=True, eq=False)
class Contains(Guard):
    """The keys of a dict, a tuple of constants; or the members of a set, which may be objects."""

    cost: ClassVar[int] = CONTENTS
    value: tuple[Any, ...] | frozenset[Any]

    def __post_init__(self) -> None:
        if isinstance(self.value, tuple):
            token(self.value)  # raises for what is no constant

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        # Held, not written as a literal: keys of the same dict are then the same objects, which compare fast.
        expected = writer.held(self.value, f"contents_of_{names[0]}")
        check = same_keys if isinstance(self.value, tuple) else same_members
        return [f"not {writer.held(check, check.__name__)}({names[0]}, {expected})"]

    def aspect(self) -> Aspect:
        what = "tuple of keys" if isinstance(self.value, tuple) else "set of members"
        return what, shown_all(self.value), shown_all


@dataclass(frozen=True, slots=True, eq=False)
class NoHooks(Guard):
    """A module without forward and backward hooks of any kind, or `torch.nn.modules.module` without those."""

    cost: ClassVar[int] = CONTENTS
    tables: tuple[str, ...] = HOOKS

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{names[0]}.{table}" for table in self.tables]

    def aspect(self) -> Aspect:
        def filled(owner: Any) -> str:
            return ", ".join(table.strip("_") for table in self.tables if getattr(owner, table))

        return "set of hooks", "empty", filled


@dataclass(frozen=True, slots=True, eq=False)
class Answers(Guard):
    """A call that returns the same result: how many devices there are, what a function has memoised."""

    cost: ClassVar[int] = SURROUNDINGS
    source: Held
    """The function that is called."""
    args: tuple[Any, ...]
    value: Any
    keywords: tuple[tuple[str, Any], ...] = ()

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        given = [writer.constant(each, shown(each)) for each in self.args]
        given += [f"{name}={writer.constant(each, shown(each))}" for name, each in self.keywords]
        call = f"{names[0]}({', '.join(given)})"
        return [f"not {writer.held(same, 'same')}({call}, {writer.held(self.value, 'answer')})"]

    def about(self) -> str:
        return f"{self.source}({', '.join(map(shown, self.args))})"

    def aspect(self) -> Aspect:
        def now(function: Any) -> str:
            return shown(function(*self.args, **dict(self.keywords)))

        return "answer", shown(self.value), now


@dataclass(frozen=True, slots=True, eq=False)
class AmbientIs(Guard):
    cost: ClassVar[int] = SURROUNDINGS
    facts: AmbientFacts

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{writer.held(AmbientFacts.now, 'ambient_now')}() != {writer.held(self.facts, 'ambient')}"]

    def expected(self) -> str:
        known = {name: value for name, value in self.facts._asdict().items() if value}
        return ", ".join(f"{_words(name)} is {shown(value)}" for name, value in known.items())

    def difference(self, values: Sequence[Any]) -> str:
        return _changes(self.facts, AmbientFacts.now())


@dataclass(frozen=True, slots=True, eq=False)
class TensorLike(Guard):
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
        return _changes(self.facts, TensorFacts.of(values[0]))


@dataclass(frozen=True, slots=True, eq=False)
class StorageOffset(Guard):
    """Where in its memory a tensor begins: guarded only where a program reads it."""

    cost: ClassVar[int] = TENSOR
    offset: int

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{names[0]}.storage_offset() != {self.offset}"]

    def aspect(self) -> Aspect:
        return "storage offset", str(self.offset), lambda tensor: str(tensor.storage_offset())


@dataclass(frozen=True, slots=True, eq=False)
class ObjectCount(Guard):
    """How many different objects they are: one each, or one under several names."""

    cost: ClassVar[int] = ALL_TENSORS
    count: int

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        identities = ", ".join(f"{writer.held(id, 'id')}({name})" for name in names)
        return [f"{writer.held(len, 'len')}({{{identities}}}) != {self.count}"]

    def aspect(self) -> Aspect:
        return "number of objects", str(self.count), lambda *values: str(len(set(map(id, values))))


@dataclass(frozen=True, slots=True, eq=False)
class SharedStorage(Guard):
    """Which of them share memory: a write to one is then seen in another, and the graph relies on it."""

    cost: ClassVar[int] = ALL_TENSORS
    places: tuple[tuple[int, ...], tuple[int, ...]]
    """The number of each one's storage, in the order of appearance, storages that overlap count as one; and
    how far in bytes each lies from the first in its storage."""

    @classmethod
    def of(cls, sources: tuple[Source, ...], tensors: tuple[torch.Tensor, ...]) -> SharedStorage:
        return cls(sources[0], storage_places(tensors), others=sources[1:])

    def conditions(self, names: Sequence[str], writer: Writer) -> list[str]:
        return [f"{writer.held(storage_places, 'storage_places')}([{', '.join(names)}]) != {self.places}"]

    def aspect(self) -> Aspect:
        shown_places = "{} at {}".format
        before = shown_places(*self.places)
        return "storage", before, lambda *tensors: shown_places(*storage_places(tensors))


def has_instance_value(source: Source, name: str, *, present: bool = True) -> HasKey:
    """Return the guard that an instance has an attribute, or that it has none that shadows its class's."""
    return HasKey(Attribute(source, "__dict__"), name, present)


def _changes(before: Any, now: Any) -> str:
    """Return a description of the facts in which two of one kind differ."""
    facts = zip(now._fields, before, now, strict=True)
    return ", ".join(
        f"{_words(name)} is {shown(new)}, was {shown(old)}" for name, old, new in facts if old != new
    )


def _words(name: str) -> str:
    return name.replace("_", " ")


def _is_no(kind: type, x: str, writer: Writer) -> str:
    return f"{writer.held(type, 'type')}({x}) is not {writer.held(kind, type_name(kind))}"


def _object(value: Any, writer: Writer) -> str:
    """Return text for the object itself: a literal only where equal values are one object."""
    return writer.constant(value, shown(value)) if by_identity(value) else writer.held(value, shown(value))
