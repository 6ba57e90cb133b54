"""Constants: when one value may stand for another. Python's `==` is too weak: `1 == True`, `0.0 == -0.0`."""

from __future__ import annotations

import enum
import types
from collections.abc import Hashable
from typing import Any

import torch

ONE_OF_A_KIND = frozenset(
    {
        type(None),
        bool,
        type(...),
        type(NotImplemented),
        types.CodeType,
        torch.dtype,
        torch.layout,
        torch.memory_format,
        torch.qscheme,
    }
)
"""Equal ones are the same object. (Code objects with equal contents may still belong to different files.)"""

_BY_VALUE = frozenset({int, str, bytes, torch.device})


def by_identity(value: Any) -> bool:
    """Whether `is` is the right comparison. Asks the type, as `isinstance` may run code of the user's."""
    return type(value) in ONE_OF_A_KIND or issubclass(type(value), enum.Enum)


def token(value: Any) -> Hashable:
    """What two constants have in common if and only if no program can tell them apart (but by `is`).

    Raises `TypeError` for what is no constant. A NaN is like any other NaN.
    """
    kind = type(value)
    if kind in _BY_VALUE:
        return kind, value
    if by_identity(value):
        return kind, id(value)
    if kind is float:
        return kind, value.hex()
    if kind is complex:
        return kind, value.real.hex(), value.imag.hex()
    if kind is tuple or kind is torch.Size:
        return kind, *map(token, value)
    if kind is frozenset:
        return kind, len(value), frozenset(map(token, value))
    if kind is slice or kind is range:
        return kind, token(value.start), token(value.stop), token(value.step)
    raise TypeError(f"{kind.__name__} is no kind of constant")


def is_constant(value: Any) -> bool:
    try:
        token(value)
    except TypeError:
        return False
    return True


def token_or_identity(value: Any) -> Hashable:
    """For members of sets and keys of dicts, which may be objects too."""
    return token(value) if is_constant(value) else ("object", id(value))


def same(found: Any, expected: Any) -> bool:
    """Generated code compares with this what has no simple comparison; mostly it is the very same object."""
    return found is expected or (type(found) is type(expected) and token(found) == token(expected))


def same_keys(found: Any, expected: tuple[Any, ...]) -> bool:
    """Whether a dict has these keys, in this order, of these types."""
    keys = tuple(found)
    # Types first: what follows then runs no `__eq__` of the user's.
    return len(keys) == len(expected) and all(map(same, keys, expected))


def same_members(found: Any, expected: frozenset[Any]) -> bool:
    """Whether a set has these members, of these types; objects count by identity."""
    if type(found) not in (set, frozenset) or len(found) != len(expected):
        return False
    return set(map(token_or_identity, found)) == set(map(token_or_identity, expected))
