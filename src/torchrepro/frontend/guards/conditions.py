"""What a guard checks, as conditions in Python: any of them is a miss.

They are evaluated in order. None runs code of the user's if those before it are false and the guards on what
a value was read from hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import CellType
from typing import Any

import torch
from torch.nn.modules import module as nn_module

from torchrepro.frontend.codegen.writer import LITERALS, Writer
from torchrepro.frontend.guards import kinds
from torchrepro.frontend.guards.ambient_facts import AmbientFacts
from torchrepro.frontend.guards.constants import by_identity, same, same_keys, same_members
from torchrepro.frontend.guards.shown import shown, type_name
from torchrepro.frontend.guards.tensor_facts import TensorFacts, storage_places

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{table}" for table in HOOKS)
"""Tables of a module, and of all modules in `torch.nn.modules.module`. Checked on torch 2.11 to 2.15."""

_EMPTY_CELL = CellType()


def conditions(guard: kinds.Guard, names: Sequence[str], writer: Writer) -> list[str]:
    """`names` are the variables that hold what is at `guard.reads`."""
    x = names[0] if names else ""
    match guard:
        case kinds.Is(_, value):
            return [f"{x} is not {_object(value, writer)}"]
        case kinds.Equal(_, value):
            return _equal(x, value, writer)
        case kinds.TypeIs(_, kind):
            return [_is_no(kind, x, writer)]
        case kinds.SameObject():
            return [f"{x} is not {names[1]}"]
        case kinds.Unbound(source):
            return [f"{source.name!r} in L"]
        case kinds.EmptyCell():
            # An empty cell equals no full one; contents are compared only where both have some.
            return [f"{x} != {writer.held(_EMPTY_CELL, 'empty_cell')}"]
        case kinds.Length(_, count):
            return [f"{writer.held(len, 'len')}({x}) != {count}"]
        case kinds.HasKey(_, key):
            return [f"{_constant(key, writer)} not in {x}"]
        case kinds.LacksKey(_, key):
            return [f"{_constant(key, writer)} in {x}"]
        case kinds.HasInstanceValue(_, name):
            return [f"{name!r} not in {x}.__dict__"]
        case kinds.LacksAttribute(_, name):
            return [f"{writer.held(hasattr, 'hasattr')}({x}, {name!r})"]
        case kinds.LacksInstanceValue(_, name):
            return [f"{name!r} in {x}.__dict__"]
        case kinds.LacksMember(_, table, name):
            return [f"{name!r} in {x}.__dict__[{table!r}]"]
        case kinds.Keys(_, keys):
            # Held, not written down: the keys of the very dict are then the very objects, and compare fast.
            return [f"not {writer.held(same_keys, 'same_keys')}({x}, {writer.held(keys, f'keys_of_{x}')})"]
        case kinds.SetEquals(_, value):
            members = writer.held(value, f"members_of_{x}")
            return [f"not {writer.held(same_members, 'same_members')}({x}, {members})"]
        case kinds.NoHooks():
            return [f"{x}.{table}" for table in HOOKS]
        case kinds.NoGlobalHooks():
            return [f"{writer.held(nn_module, 'nn_module')}.{table}" for table in GLOBAL_HOOKS]
        case kinds.Answers(function, args, value, keywords):
            given = [_constant(each, writer) for each in args]
            given += [f"{name}={_constant(each, writer)}" for name, each in keywords]
            call = f"{writer.held(function, function.__name__)}({', '.join(given)})"
            return [f"not {writer.held(same, 'same')}({call}, {writer.held(value, 'answer')})"]
        case kinds.AmbientIs(facts):
            return [f"{writer.held(AmbientFacts.now, 'ambient_now')}() != {writer.held(facts, 'ambient')}"]
        case kinds.TensorLike(_, facts):
            return _tensor_like(x, facts, writer)
        case kinds.StorageOffset(_, offset):
            return [f"{x}.storage_offset() != {offset}"]
        case kinds.Distinct():
            identities = ", ".join(f"{writer.held(id, 'id')}({name})" for name in names)
            return [f"{writer.held(len, 'len')}({{{identities}}}) != {len(names)}"]
        case kinds.SharedStorage(_, pattern, offsets):
            found = f"{writer.held(storage_places, 'storage_places')}([{', '.join(names)}])"
            return [f"{found} != {(pattern, offsets)}" if offsets else f"{found}[0] != {pattern}"]
    raise NotImplementedError(f"no conditions for {guard!r}")


def _equal(x: str, value: Any, writer: Writer) -> list[str]:
    kind = type(value)
    if by_identity(value):
        return [f"{x} is not {_object(value, writer)}"]
    if kind is float and math.isfinite(value) and value != 0.0:
        return [_is_no(kind, x, writer), f"{x} != {value!r}"]
    if kind in LITERALS or kind is torch.device:
        return [_is_no(kind, x, writer), f"{x} != {_constant(value, writer)}"]
    expected = writer.held(value, f"{kind.__name__}_{shown(value)}"[:40])
    return [f"not {writer.held(same, 'same')}({x}, {expected})"]


def _tensor_like(x: str, facts: TensorFacts, writer: Writer) -> list[str]:
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


def _is_no(kind: type, x: str, writer: Writer) -> str:
    return f"{writer.held(type, 'type')}({x}) is not {writer.held(kind, type_name(kind))}"


def _object(value: Any, writer: Writer) -> str:
    """The object itself: a literal only where equal ones are one object."""
    return writer.constant(value, shown(value)) if by_identity(value) else writer.held(value, shown(value))


def _constant(value: Any, writer: Writer) -> str:
    try:
        return writer.constant(value, shown(value))
    except ValueError:  # Python writes no integers of thousands of digits
        return writer.held(value, shown(value))
