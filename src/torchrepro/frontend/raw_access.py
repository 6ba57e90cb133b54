"""Bare: a container of a class that overrides how it is read, read as the builtin type that it derives from.

Guards and generated code read its contents, and must not run the methods of the user's class for that.

`is_a`: of which class a value is, without running code of the user's.
"""

from __future__ import annotations

import types
from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Any

from torchrepro.frontend.source import Bare, Source


def is_a(value: Any, kinds: Any) -> bool:
    """Return `isinstance` by the type alone: the builtin may run a `__getattribute__` to read `__class__`."""
    return issubclass(type(value), kinds)


_READING = ("__getitem__", "__len__", "__iter__", "__contains__")
_IN_C = (types.WrapperDescriptorType, types.MethodDescriptorType, type(None))
_CONTAINERS = (list, tuple, OrderedDict, dict, deque)


def bare(source: Source, value: Any) -> Source:
    """Return where the items of a container are read from: the object, unless its class overrides reading."""
    kind = type(value)
    if all(is_a(getattr(kind, name, None), _IN_C) for name in _READING):
        return source
    return Bare(source, next(base for base in _CONTAINERS if issubclass(kind, base)))


class BareView:
    __slots__ = ("_base", "_value")

    def __init__(self, value: Any, base: Any) -> None:
        self._value = value
        self._base = base

    def __getitem__(self, key: Any) -> Any:
        return self._base.__getitem__(self._value, key)

    def __len__(self) -> int:
        return int(self._base.__len__(self._value))

    def __iter__(self) -> Iterator[Any]:
        found: Iterator[Any] = self._base.__iter__(self._value)
        return found

    def __contains__(self, key: Any) -> bool:
        return bool(self._base.__contains__(self._value, key))
