"""Builtins as Python functions: traced in their place, so that what items define is traced as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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


def extreme(items: Sequence[Any], keys: Sequence[Any], better: Callable[[Any, Any], Any]) -> Any:
    best = 0
    for place in range(1, len(keys)):
        if better(keys[place], keys[best]):
            best = place
    return items[best]


def backwards(value: Any) -> Iterator[Any]:
    for place in range(len(value) - 1, -1, -1):
        yield value[place]
