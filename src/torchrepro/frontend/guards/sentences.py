"""What users read of guards: what each one expects, and how the state of a call differs from that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.nn.modules import module as nn_module

from torchrepro.frontend.guards import kinds
from torchrepro.frontend.guards.ambient_facts import AmbientFacts
from torchrepro.frontend.guards.conditions import GLOBAL_HOOKS, HOOKS
from torchrepro.frontend.guards.shown import shown, shown_all, shown_source, type_name
from torchrepro.frontend.guards.tensor_facts import TensorFacts, storage_places

_GONE = (KeyError, AttributeError, IndexError)


def sentence(guard: kinds.Guard) -> str:
    """`argument x: length is 2`."""
    return f"{_about(guard)}: {_expected(guard)}"


def miss_sentence(guard: kinds.Guard, values: Sequence[Any], error: Exception | None) -> str:
    """`argument x: length is 3, was 2`, given what is at `guard.reads` or the error that the check met."""
    try:
        if error is None:
            return f"{_about(guard)}: {_difference(guard, values)}"
    except Exception as another:  # an object that answers differently each time
        error = another
    fact = "is no longer there" if isinstance(error, _GONE) else "cannot be read"
    return f"{_about(guard)}: {fact} ({type(error).__name__}); before, {_expected(guard)}"


def _about(guard: kinds.Guard) -> str:
    match guard:
        case kinds.OfSource(source):
            return shown_source(source)
        case kinds.NoGlobalHooks():
            return "torch.nn"
        case kinds.Answers(function, args, _):
            return f"{function.__module__}.{function.__name__}({', '.join(map(shown, args))})"
        case kinds.AmbientIs():
            return "torch"
    return ", ".join(map(shown_source, guard.reads))


def _expected(guard: kinds.Guard) -> str:
    match guard:
        case kinds.TensorLike(_, facts):
            return str(facts)
        case kinds.AmbientIs(facts):
            return ", ".join(
                f"{_words(name)} is {shown(value)}" for name, value in facts._asdict().items() if value
            )
    aspect, before, _ = _aspect(guard)
    return f"{aspect} is {before}".lstrip()


def _difference(guard: kinds.Guard, values: Sequence[Any]) -> str:
    match guard:
        case kinds.TensorLike(_, facts) if type(values[0]) is not facts.kind:
            return f"type is {type_name(type(values[0]))}, was {type_name(facts.kind)}"
        case kinds.TensorLike(_, facts):
            return _changes(facts._asdict(), TensorFacts.of(values[0])._asdict())
        case kinds.AmbientIs(facts):
            return _changes(facts._asdict(), AmbientFacts.now()._asdict())
    aspect, before, look = _aspect(guard)
    now = look(*values)
    now = now if now != before else f"another {now.removeprefix('a ')}"
    return f"{aspect} is {now}, was {before}".lstrip()


def _aspect(guard: kinds.Guard) -> tuple[str, str, Callable[..., str]]:
    """What of a thing is guarded, how it was, and how to see how it is where that is not so."""
    match guard:
        case kinds.Is(_, value) | kinds.Equal(_, value):
            return "", shown(value), shown
        case kinds.TypeIs(_, kind):
            return "type", type_name(kind), lambda found: type_name(type(found))
        case kinds.SameObject(_, other):
            return "object", f"that of {shown_source(other)}", lambda *_: "another"
        case kinds.Unbound() | kinds.EmptyCell():
            return "variable", "unbound", lambda *_: "bound"
        case kinds.Length(_, count):
            return "length", str(count), lambda found: str(len(found))
        case kinds.HasKey(_, key) | kinds.HasInstanceValue(_, key):
            return shown(key), "present", lambda _: "absent"
        case kinds.LacksKey(_, key) | kinds.LacksInstanceValue(_, key) | kinds.LacksMember(_, _, key):
            return shown(key), "absent", lambda _: "present"
        case kinds.LacksAttribute(_, name):
            return shown(name), "absent", lambda _: "present"
        case kinds.Keys(_, keys):
            return "tuple of keys", shown_all(keys), shown_all
        case kinds.SetEquals(_, members):
            return "set of members", shown_all(members), shown_all
        case kinds.NoHooks():
            return "set of hooks", "empty", lambda module: _filled(module, HOOKS)
        case kinds.NoGlobalHooks():
            return "set of hooks", "empty", lambda: _filled(nn_module, GLOBAL_HOOKS)
        case kinds.Answers(function, args, value, keywords):
            return "answer", shown(value), lambda: shown(function(*args, **dict(keywords)))
        case kinds.StorageOffset(_, offset):
            return "storage offset", str(offset), lambda tensor: str(tensor.storage_offset())
        case kinds.Distinct():
            return "object", "one for each", lambda *_: "shared"
        case kinds.SharedStorage(_, pattern, offsets):
            return "storage", _places(pattern, offsets), lambda *tensors: _places(*storage_places(tensors))
    raise NotImplementedError(f"no sentence for {guard!r}")


def _places(pattern: tuple[int, ...], offsets: tuple[int, ...]) -> str:
    return f"{pattern} at {offsets}" if offsets else str(pattern)


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
