"""Builtins as Python functions: traced in their place, so that what items define is traced as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

NUMBERS = (int, float, bool)


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


def total(iterable: Iterable[Any], start: Any) -> Any:
    numbers: list[Any] = []
    for item in iterable:
        if type(start) in NUMBERS and type(item) in NUMBERS:
            numbers.append(item)  # C adds them: it loses less of what floats round
        else:
            start, numbers = sum(numbers, start) + item, []
    return sum(numbers, start)


def extreme(items: Sequence[Any], keys: Sequence[Any], better: Callable[[Any, Any], Any]) -> Any:
    best = 0
    for place in range(1, len(keys)):
        if better(keys[place], keys[best]):
            best = place
    return items[best]


def backwards(value: Any) -> Iterator[Any]:
    for place in range(len(value) - 1, -1, -1):
        yield value[place]
