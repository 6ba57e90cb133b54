"""Builtins as Python functions: traced in their place, so that what items define is traced as well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def any_true(iterable: Iterable[Any]) -> bool:
    for item in iterable:  # noqa: SIM110
        if item:
            return True
    return False


def all_true(iterable: Iterable[Any]) -> bool:
    for item in iterable:  # noqa: SIM110
        if not item:
            return False
    return True


def smallest(items: Sequence[Any], keys: Sequence[Any]) -> Any:
    best = 0
    for place in range(1, len(keys)):
        if keys[place] < keys[best]:
            best = place
    return items[best]


def largest(items: Sequence[Any], keys: Sequence[Any]) -> Any:
    best = 0
    for place in range(1, len(keys)):
        if keys[place] > keys[best]:
            best = place
    return items[best]


def total(items: Sequence[Any], start: Any) -> Any:
    for item in items:
        start = start + item
    return start


def index(owner: Any, items: Sequence[Any], value: Any, start: Any = 0, stop: Any = None) -> int:
    for place in range(len(items))[start:stop]:
        if items[place] is value or items[place] == value:
            return place
    if isinstance(owner, tuple):
        raise ValueError("tuple.index(x): x not in tuple")
    raise ValueError(f"{value!r} is not in list")


def count(owner: Any, items: Sequence[Any], value: Any) -> int:
    found = 0
    for item in items:
        if item is value or item == value:
            found += 1
    return found


def remove(owner: Any, items: Sequence[Any], value: Any) -> None:
    for place, item in enumerate(items):
        if item is value or item == value:
            list.__delitem__(owner, place)
            return
    raise ValueError("list.remove(x): x not in list")


def backwards(value: Any) -> Iterator[Any]:
    for place in range(len(value) - 1, -1, -1):
        yield value[place]
