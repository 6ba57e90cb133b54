"""Builtins that compare or test their items: done in steps where items have methods in Python."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.asking import is_a
from torchrepro.frontend.rebuild.objects import elements
from torchrepro.frontend.tracing.classes import MISSING, is_trusted_class
from torchrepro.frontend.tracing.foreign import has_objects, natively, no_foreign_code
from torchrepro.frontend.tracing.special import SPECIAL, Handler, special
from torchrepro.frontend.tracing.stepped import SteppedCallable, SteppedIterator

if TYPE_CHECKING:
    from torchrepro.frontend.tracing.native_calls import NativeCalls


class _Ordered:
    """An item as C orders it: each comparison is stepped."""

    __slots__ = ("tracer", "value")

    def __init__(self, tracer: NativeCalls, value: Any) -> None:
        self.tracer = tracer
        self.value = value

    def __lt__(self, other: _Ordered) -> bool:
        return self.tracer.is_true(self.tracer.compare("LT", self.value, other.value))

    def __gt__(self, other: _Ordered) -> bool:
        return self.tracer.is_true(self.tracer.compare("GT", self.value, other.value))


def _items(tracer: NativeCalls, values: Any) -> list[Any]:
    return list(tracer.unpack(values))


def _any_with(tracer: NativeCalls, items: Iterable[Any], *names: str) -> bool:
    return any(tracer.python_method(item, name) is not None for item in items for name in names)


def _keys(tracer: NativeCalls, key: Any, items: list[Any]) -> list[Any]:
    """What items are ordered by, asked for once."""
    keys = items if key is None else [tracer.call_function(key, (item,), {}) for item in items]
    stepped = _any_with(tracer, keys, "__lt__", "__gt__")
    return [_Ordered(tracer, value) for value in keys] if stepped else keys


@special(sorted)
def _sorted(tracer: NativeCalls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    items = _items(tracer, args[0])
    keys = _keys(tracer, kwargs.get("key"), items)
    places = list(range(len(items)))
    backwards = tracer.is_true(kwargs.get("reverse"))
    with no_foreign_code("sorted") if has_objects(keys) else nullcontext():
        places.sort(key=keys.__getitem__, reverse=backwards)
    return [items[place] for place in places]


@special(functools.cmp_to_key)
def _cmp_to_key(tracer: NativeCalls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return functools.cmp_to_key(SteppedCallable(tracer, args[0]))


@special(list.sort)
def _sort(tracer: NativeCalls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    args[0][:] = tracer.call_function(sorted, (list(args[0]),), kwargs)
    return None


def _extreme(function: Any, better: Any) -> Handler:
    def handler(tracer: NativeCalls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        items = _items(tracer, args[0]) if len(args) == 1 else list(args)
        if not items:
            return function(items, **kwargs)
        keys = _keys(tracer, kwargs.get("key"), items)
        best = 0
        for place in range(1, len(items)):
            best = (
                place if tracer.is_true(natively("a comparison", better, keys[place], keys[best])) else best
            )
        return items[best]

    return handler


SPECIAL[min] = _extreme(min, operator.lt)
SPECIAL[max] = _extreme(max, operator.gt)


@special(any)
def _any(tracer: NativeCalls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return any(map(tracer.is_true, SteppedIterator(tracer, tracer.get_iter(args[0]))))


@special(all)
def _all(tracer: NativeCalls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return all(map(tracer.is_true, SteppedIterator(tracer, tracer.get_iter(args[0]))))


def _position(tracer: NativeCalls, items: Sequence[Any], value: Any) -> list[int] | None:
    """Where a value is among items; None where C can tell."""
    items = list(elements(items))
    if not _any_with(tracer, (value, *items), "__eq__"):
        return None
    return [
        place
        for place, item in enumerate(items)
        if item is value or tracer.is_true(tracer.compare("EQ", item, value))
    ]


@special(list.index, tuple.index)
def _index(tracer: NativeCalls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    found = _position(tracer, *args[:2]) if len(args) == 2 else None
    if found is None:
        return NotImplemented
    if not found:
        raise ValueError("the value is not in the list")
    return found[0]


@special(list.count, tuple.count)
def _count(tracer: NativeCalls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    found = _position(tracer, *args)
    return NotImplemented if found is None else len(found)


@special(list.remove)
def _remove(tracer: NativeCalls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    found = _position(tracer, *args)
    if found is None:
        return NotImplemented
    if not found:
        raise ValueError("list.remove(x): x not in list")
    del args[0][found[0]]
    return None


@special(divmod)
def _divmod(tracer: NativeCalls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    left, right = args
    for receiver, name, argument in ((left, "__divmod__", right), (right, "__rdivmod__", left)):
        result = tracer.special(receiver, name, argument)
        if result is not MISSING and result is not NotImplemented:
            return result
    return NotImplemented


def _checked(function: Any, name: str) -> Handler:
    """A class may decide by itself, through its metaclass, what belongs to it."""

    def handler(tracer: NativeCalls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value, kinds = args
        if is_a(kinds, tuple):
            return any(tracer.call_function(function, (value, kind), {}) for kind in kinds)
        if function is isinstance and tracer.call_function(type, (value,), {}) is kinds:
            return True  # nobody is asked then
        check = tracer.python_method(kinds, name)
        meta: Any = type(kinds)
        if check is None or is_trusted_class(meta):
            kind = value if function is issubclass else tracer.call_function(type, (value,), {})
            tracer.guard_kinship(kind, kinds)
            return NotImplemented
        return tracer.is_true(tracer.call_function(check, (kinds, value), {}))

    return handler


SPECIAL[isinstance] = _checked(isinstance, "__instancecheck__")
SPECIAL[issubclass] = _checked(issubclass, "__subclasscheck__")


def _of_numbers(function: Any) -> Handler:
    def handler(tracer: NativeCalls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return function(*map(tracer.as_index, args), **kwargs)

    return handler


SPECIAL |= {function: _of_numbers(function) for function in (hex, oct, bin, chr, range)}
