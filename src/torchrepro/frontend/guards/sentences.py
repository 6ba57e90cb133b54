"""What users read of guards: what each one expects, and how the state of a call differs from that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from torch.nn.modules import module as nn_module

from torchrepro.frontend.guards.conditions import GLOBAL_HOOKS, HOOKS
from torchrepro.frontend.guards.kinds import (
    AmbientFacts,
    AmbientIs,
    Distinct,
    EmptyCell,
    Equal,
    Guard,
    HasInstanceValue,
    HasKey,
    Is,
    Keys,
    LacksInstanceValue,
    LacksKey,
    LacksMember,
    Length,
    NoGlobalHooks,
    NoHooks,
    OfSource,
    SameObject,
    SetEquals,
    SharedStorage,
    TensorFacts,
    TensorLike,
    TypeIs,
    Unbound,
)
from torchrepro.frontend.guards.shown import shown, shown_all, shown_source, type_name
from torchrepro.frontend.guards.tensor_facts import storage_offsets, storage_pattern

_GONE = (KeyError, AttributeError, IndexError)


def sentence(guard: Guard) -> str:
    """`argument x: length is 2`."""
    return f"{_about(guard)}: {_expected(guard)}"


def miss_sentence(guard: Guard, values: Sequence[Any], error: Exception | None) -> str:
    """`argument x: length is 3, was 2`, given what is at `guard.reads` or the error that came of the check."""
    try:
        if error is None:
            return f"{_about(guard)}: {_difference(guard, values)}"
    except Exception as another:  # an object that answers differently each time
        error = another
    fact = "is no longer there" if isinstance(error, _GONE) else "cannot be read"
    return f"{_about(guard)}: {fact} ({type(error).__name__}); before, {_expected(guard)}"


def _about(guard: Guard) -> str:
    match guard:
        case OfSource(source):
            return shown_source(source)
        case NoGlobalHooks():
            return "torch.nn"
        case AmbientIs():
            return "torch"
    return ", ".join(map(shown_source, guard.reads))


def _expected(guard: Guard) -> str:
    match guard:
        case TensorLike(_, facts):
            return str(facts)
        case AmbientIs(facts):
            return ", ".join(
                f"{_words(name)} is {shown(value)}" for name, value in facts._asdict().items() if value
            )
    aspect, before = _aspect(guard)
    return f"{aspect} is {before}".lstrip()


def _difference(guard: Guard, values: Sequence[Any]) -> str:
    match guard:
        case TensorLike(_, TensorFacts(kind=kind)) if type(values[0]) is not kind:
            return f"type is {type_name(type(values[0]))}, was {type_name(kind)}"
        case TensorLike(_, facts):
            before = {each.name: getattr(facts, each.name) for each in fields(facts)}
            now = TensorFacts.of(values[0])
            return _changes(before, {name: getattr(now, name) for name in before})
        case AmbientIs(facts):
            return _changes(facts._asdict(), AmbientFacts.now()._asdict())
    aspect, was = _aspect(guard)
    found = _found(guard, values)
    return f"{aspect} is {found if found != was else f'another {found}'}, was {was}".lstrip()


def _aspect(guard: Guard) -> tuple[str, str]:
    """What of a thing is guarded, and how it was."""
    match guard:
        case Is(_, value) | Equal(_, value):
            return "", shown(value)
        case TypeIs(_, kind):
            return "type", type_name(kind)
        case SameObject(_, other):
            return "object", f"that of {shown_source(other)}"
        case Unbound() | EmptyCell():
            return "variable", "unbound"
        case Length(_, count):
            return "length", str(count)
        case HasKey(_, key) | HasInstanceValue(_, key):
            return shown(key), "present"
        case LacksKey(_, key) | LacksInstanceValue(_, key) | LacksMember(_, _, key):
            return shown(key), "absent"
        case Keys(_, keys):
            return "tuple of keys", shown_all(keys)
        case SetEquals(_, members):
            return "set of members", shown_all(members)
        case NoHooks() | NoGlobalHooks():
            return "set of hooks", "empty"
        case Distinct():
            return "object", "one for each"
        case SharedStorage(_, pattern, offsets):
            return "storage", f"{pattern} at {offsets}" if offsets else str(pattern)
    raise NotImplementedError(f"no sentence for {guard!r}")


def _found(guard: Guard, values: Sequence[Any]) -> str:
    """How it is now."""
    match guard:
        case Is() | Equal():
            return shown(values[0])
        case TypeIs():
            return type_name(type(values[0]))
        case SameObject():
            return "another"
        case Unbound() | EmptyCell():
            return "bound"
        case Length():
            return str(len(values[0]))
        case HasKey() | HasInstanceValue():
            return "absent"
        case LacksKey() | LacksInstanceValue() | LacksMember():
            return "present"
        case Keys() | SetEquals():
            return shown_all(values[0])
        case NoHooks():
            return _filled(values[0], HOOKS)
        case NoGlobalHooks():
            return _filled(nn_module, GLOBAL_HOOKS)
        case SharedStorage(_, _, offsets):
            pattern = storage_pattern(values)
            return f"{pattern} at {storage_offsets(values, pattern)}" if offsets else str(pattern)
    return "shared"


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
