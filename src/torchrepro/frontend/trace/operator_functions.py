"""Operators as functions: `operator`, the methods of dicts, and objects in C that hold a call for later."""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.interpreter.operations import BINARY, COMPARE
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace.classes import MISSING
from torchrepro.frontend.trace.special import Handler, special

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer


@special(operator.contains, least=2)
def _contains(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return tracer.items.contains(*args)


@special(operator.truth)
def _truth(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return tracer.operators.is_true(*args)


@special(operator.not_)
def _not(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return not tracer.operators.is_true(*args)


@special(operator.getitem, least=2)
def _getitem(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return tracer.items.get(*args)


@special(operator.setitem, least=3)
def _setitem(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return tracer.items.set(*args)


@special(operator.delitem, least=2)
def _delitem(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return tracer.items.delete(*args)


def _as_operator(method: str, name: str) -> Handler:
    def handler(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return getattr(tracer.operators, method)(name, *args)

    return handler


for _name, _function in BINARY.items():
    special(_function, least=2)(_as_operator("binary", _name))
for _name, _function in COMPARE.items():
    special(_function, least=2)(_as_operator("compare", _name))


# Methods of dicts, which are read key by key as long as that is all that happens to them.


@special(dict.get, collections.OrderedDict.get, least=2, most=3)
def _dict_get(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    value = tracer.dicts.get(args[0], args[1])
    if value is not MISSING:
        return value
    return args[2] if len(args) == 3 else None


@special(dict.__getitem__, least=2)
def _dict_getitem(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return tracer.items.plain_get(*args)


@special(dict.__contains__, least=2)
def _dict_contains(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return tracer.dicts.has(*args)


@special(dict.__len__)
def _dict_len(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return tracer.dicts.length(*args)


@special(dict.__setitem__, collections.OrderedDict.__setitem__, least=3)
def _dict_setitem(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tracer.items.plain_set(*args)
    return None


# Objects in C that hold a call to be made later.


def call_getter(tracer: Tracer, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`operator.attrgetter`, `itemgetter` and `methodcaller`: what they do is in how they are pickled."""
    if len(args) != 1 or kwargs:
        return function(*args, **kwargs)  # raises
    (value,) = args
    kind, arguments, *_ = function.__reduce__()
    if type(function) is operator.methodcaller:
        return _call_method(tracer, kind, arguments, value)
    found = []
    for wanted in arguments:
        current = value
        if type(function) is operator.itemgetter:
            current = tracer.items.get(current, wanted)
        else:
            for name in wanted.split("."):
                current = tracer.attributes.load(current, name)
        found.append(current)
    return found[0] if len(found) == 1 else tuple(found)


def _call_method(tracer: Tracer, kind: Any, arguments: Any, value: Any) -> Any:
    # With keywords it is pickled as a partial application of the class.
    keywords = kind.keywords if is_a(kind, functools.partial) else {}
    name, *rest = (*kind.args, *arguments) if is_a(kind, functools.partial) else arguments
    return tracer.calls.call_method(value, name, tuple(rest), keywords)
