"""Builtins that compare or test their items: done in steps where items have methods in Python."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.codegen.objects import elements
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace.classes import MISSING, is_trusted_class
from torchrepro.frontend.trace.foreign import has_objects, natively, no_foreign_code
from torchrepro.frontend.trace.operators import binary_candidates
from torchrepro.frontend.trace.special import Handler, special
from torchrepro.frontend.trace.stepped import SteppedCallable, SteppedIterator
from torchrepro.torch_api.fake import FakeTensor

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer


class _Ordered:
    """An item as C orders it: each comparison is stepped."""

    __slots__ = ("tracer", "value")

    def __init__(self, tracer: Tracer, value: Any) -> None:
        self.tracer = tracer
        self.value = value

    def __lt__(self, other: _Ordered) -> bool:
        return self.tracer.operators.is_true(self.tracer.operators.compare("LT", self.value, other.value))

    def __gt__(self, other: _Ordered) -> bool:
        return self.tracer.operators.is_true(self.tracer.operators.compare("GT", self.value, other.value))


def _items(tracer: Tracer, values: Any) -> list[Any]:
    return list(tracer.items.unpack(values))


def _any_with(tracer: Tracer, items: Iterable[Any], *names: str) -> bool:
    return any(tracer.classes.python_method(item, name) is not None for item in items for name in names)


def _keys(tracer: Tracer, key: Any, items: list[Any]) -> list[Any]:
    """What items are ordered by, asked for once."""
    keys = items if key is None else [tracer.calls.call(key, (item,), {}) for item in items]
    stepped = _any_with(tracer, keys, "__lt__", "__gt__")
    return [_Ordered(tracer, value) for value in keys] if stepped else keys


@special(sorted, keywords={"key", "reverse"})
def _sorted(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    items = _items(tracer, args[0])
    keys = _keys(tracer, kwargs.get("key"), items)
    places = list(range(len(items)))
    backwards = tracer.operators.is_true(kwargs.get("reverse"))
    with no_foreign_code("sorted") if has_objects(keys) else nullcontext():
        places.sort(key=keys.__getitem__, reverse=backwards)
    return [items[place] for place in places]


@special(functools.cmp_to_key)
def _cmp_to_key(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return functools.cmp_to_key(SteppedCallable(tracer, args[0]))


@special(list.sort, keywords={"key", "reverse"})
def _sort(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    args[0][:] = tracer.calls.call(sorted, (list(args[0]),), kwargs)
    return None


def _extreme(function: Any, better: Any) -> Handler:
    def handler(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        items = _items(tracer, args[0]) if len(args) == 1 else list(args)
        if not items or ("default" in kwargs and len(args) > 1):
            return function(*(args if items else [[]]), **kwargs)
        keys = _keys(tracer, kwargs.get("key"), items)
        best = 0
        for place in range(1, len(items)):
            best = (
                place
                if tracer.operators.is_true(natively("a comparison", better, keys[place], keys[best]))
                else best
            )
        return items[best]

    return handler


for _function, _better in ((min, operator.lt), (max, operator.gt)):
    special(_function, most=math.inf, keywords={"key", "default"})(_extreme(_function, _better))


@special(any)
def _any(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return any(map(tracer.operators.is_true, SteppedIterator(tracer, tracer.items.iterate(args[0]))))


@special(all)
def _all(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return all(map(tracer.operators.is_true, SteppedIterator(tracer, tracer.items.iterate(args[0]))))


def _found(tracer: Tracer, items: Sequence[Any], value: Any, places: Iterable[int]) -> Iterator[int]:
    """Where a value is among items."""
    return (
        place
        for place in places
        if items[place] is value
        or tracer.operators.is_true(tracer.operators.compare("EQ", items[place], value))
    )


@special(list.index, tuple.index, least=2, most=4)
def _index(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    owner, value, *bounds = args
    items = list(elements(owner))
    if not _any_with(tracer, (value, *items), "__eq__"):
        return NotImplemented
    start, stop = (*map(tracer.items.as_index, bounds), None, None)[:2]
    places = range(len(items))[start:stop]
    for place in _found(tracer, items, value, places):
        return place
    if is_a(owner, tuple):
        raise ValueError("tuple.index(x): x not in tuple")
    raise ValueError(f"{tracer.operators.format(value, 'repr', '')} is not in list")


@special(list.count, tuple.count, least=2)
def _count(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    owner, value = args
    items = list(elements(owner))
    if not _any_with(tracer, (value, *items), "__eq__"):
        return NotImplemented
    return len(list(_found(tracer, items, value, range(len(items)))))


@special(list.remove, least=2)
def _remove(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    owner, value = args
    items = list(elements(owner))
    if not _any_with(tracer, (value, *items), "__eq__"):
        return NotImplemented
    for place in _found(tracer, items, value, range(len(items))):
        list.__delitem__(owner, place)
        return None
    raise ValueError("list.remove(x): x not in list")


@special(divmod, least=2)
def _divmod(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    left, right = args
    for receiver, name in binary_candidates(tracer.classes.lookup, "DIVMOD", left, right):
        result = tracer.calls.special(receiver, name, left if name == "__rdivmod__" else right)
        if result is not MISSING and result is not NotImplemented:
            return result
    return NotImplemented


def _checked(function: Any, name: str) -> Handler:
    """A class may decide by itself, through its metaclass, what belongs to it."""

    def handler(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value, kinds = args
        if is_a(kinds, tuple):
            return any(tracer.calls.call(function, (value, kind), {}) for kind in kinds)
        if function is isinstance and tracer.calls.call(type, (value,), {}) is kinds:
            return True  # nobody is asked then
        if isinstance(value, FakeTensor) and kinds is FakeTensor and tracer.recorder.owns(value):
            return False  # the tensor that it stands for is none
        check = tracer.classes.python_method(kinds, name)
        meta: Any = type(kinds)
        if check is None or is_trusted_class(meta):
            kind = value if function is issubclass else tracer.calls.call(type, (value,), {})
            tracer.classes.guard_kinship(kind, kinds)
            return NotImplemented
        return tracer.operators.is_true(tracer.calls.call(check, (kinds, value), {}))

    return handler


special(isinstance, least=2)(_checked(isinstance, "__instancecheck__"))
special(issubclass, least=2)(_checked(issubclass, "__subclasscheck__"))


def _of_numbers(function: Any) -> Handler:
    def handler(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return function(*map(tracer.items.as_index, args), **kwargs)

    return handler


_NUMBERS: tuple[Any, ...] = (hex, oct, bin, chr, range)
for _number in _NUMBERS:
    special(_number, most=3)(_of_numbers(_number))
