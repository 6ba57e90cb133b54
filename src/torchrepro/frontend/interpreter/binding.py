"""Binding: which parameter gets which argument, as CPython decides when it enters a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FunctionType
from typing import Any, NoReturn

_NOTHING = (lambda: None).__code__


def bind_arguments(
    function: FunctionType,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    defaults: Sequence[Any] | None = None,
    kwdefaults: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The local variables with which `function` starts. Defaults are those of the function unless given."""
    code = function.__code__
    names = code.co_varnames
    count = code.co_argcount
    star = code.co_flags & (CO_VARARGS | CO_VARKEYWORDS)
    if not kwargs and not star and len(args) == count and not code.co_kwonlyargcount:
        return dict(zip(names, args, strict=False))
    if defaults is None:
        defaults = function.__defaults__ or ()
    if kwdefaults is None:
        kwdefaults = function.__kwdefaults__ or {}

    last = count + code.co_kwonlyargcount
    bound = dict(zip(names[:count], args, strict=False))
    extra: dict[str, Any] = {}
    by_keyword = names[code.co_posonlyargcount : last]
    for name, value in kwargs.items():
        if name in by_keyword and name not in bound:
            bound[name] = value
        elif star & CO_VARKEYWORDS and name not in by_keyword:
            extra[name] = value
        else:
            _refuse(function, args, kwargs, defaults, kwdefaults)
    if len(args) > count and not star & CO_VARARGS:
        _refuse(function, args, kwargs, defaults, kwdefaults)
    if len(bound) < last:
        first_default = count - len(defaults)
        for position, name in enumerate(names[:last]):
            if name not in bound:
                if first_default <= position < count:
                    bound[name] = defaults[position - first_default]
                elif position >= count and name in kwdefaults:
                    bound[name] = kwdefaults[name]
                else:
                    _refuse(function, args, kwargs, defaults, kwdefaults)
    if star & CO_VARARGS:
        bound[names[last]] = tuple(args[count:])
        last += 1
    if star & CO_VARKEYWORDS:
        bound[names[last]] = extra
    return bound


def _refuse(
    function: FunctionType,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    defaults: Sequence[Any],
    kwdefaults: Mapping[str, Any],
) -> NoReturn:
    """Raise CPython's own error, by calling a function of the same parameters and no body."""
    code = function.__code__.replace(co_code=_NOTHING.co_code, co_consts=_NOTHING.co_consts)
    twin = FunctionType(code, {}, function.__name__, tuple(defaults), function.__closure__)
    twin.__kwdefaults__ = dict(kwdefaults)
    twin.__qualname__ = function.__qualname__
    twin(*args, **kwargs)
    raise AssertionError(f"the arguments of {function.__qualname__} do not bind here, but do in CPython")
