"""Bare: a container of a class that overrides how it is read, read as the builtin type that it derives from.

Guards and generated code look at what is in it, and must not run the methods of the user's class for that.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from torchrepro.frontend.source import Bare, Source

_READING = ("__getitem__", "__len__", "__iter__", "__contains__", "keys")


def bare(source: Source, value: Any, base: Any) -> Source:
    """Where the items of a container are read from."""
    kind = type(value)
    if any(isinstance(getattr(kind, name, None), types.FunctionType) for name in _READING):
        return Bare(source, base)
    return source


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
