"""Handlers: builtins that look inside objects. Each does what CPython does, through the parts of the tracer.

Those that only compare or test items are traced as Python functions (`python_builtins`).
"""

from __future__ import annotations

import builtins
import collections
import functools
import math
import operator
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import torch

from torchrepro.frontend.codegen.objects import elements
from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.guards.kinds import StorageOffset
from torchrepro.frontend.interpreter.callers import build_class
from torchrepro.frontend.interpreter.generator import SteppedGenerator
from torchrepro.frontend.interpreter.operations import BINARY, COMPARE
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace import python_builtins
from torchrepro.frontend.trace.classes import MISSING, is_python_class, is_trusted_class
from torchrepro.frontend.trace.fakes import unseen
from torchrepro.frontend.trace.foreign import has_objects, no_foreign_code
from torchrepro.frontend.trace.operators import checked_length
from torchrepro.torch_api.fake import FakeTensor

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer

Handler = Callable[["Tracer", Sequence[Any], Mapping[str, Any]], Any]

HANDLERS: dict[Any, Handler] = {}
"""By the function itself. A handler returns `NotImplemented` to have the function called as any other."""

GETTERS: tuple[Any, ...] = (operator.attrgetter, operator.itemgetter, operator.methodcaller)


def handle(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a handler for calls that fit its parameters: C says what is wrong with others."""

    def register(handler: Callable[..., Any]) -> Callable[..., Any]:
        for function in functions:
            HANDLERS[function] = _fitting(function, handler)
        return handler

    return register


def _fitting(function: Any, handler: Callable[..., Any]) -> Handler:
    owner = getattr(function, "__objclass__", object)
    parameters = list(signature(handler).parameters.values())[1:]
    positional = [each for each in parameters if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
    least = sum(each.default is Parameter.empty for each in positional)
    most = math.inf if any(each.kind is Parameter.VAR_POSITIONAL for each in parameters) else len(positional)
    keywords = {each.name for each in parameters if each.kind is Parameter.KEYWORD_ONLY}
    any_keyword = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)

    def call(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        fits = least <= len(args) <= most and (any_keyword or kwargs.keys() <= keywords)
        if not fits or (args and not issubclass(type(args[0]), owner)):
            return NotImplemented
        return handler(tracer, *args, **kwargs)

    return call


def handle_all(table: Mapping[Any, Callable[..., Any]]) -> None:
    for function, handler in table.items():
        handle(function)(handler)


# Attributes and objects


@handle(getattr)
def _getattr(tracer: Tracer, value: Any, name: Any, default: Any = MISSING) -> Any:
    if not is_a(name, str):
        return NotImplemented
    try:
        return tracer.attributes.load(value, name)
    except AttributeError:
        if default is MISSING:
            raise
        return default


@handle(object.__setattr__)
def _object_setattr(tracer: Tracer, value: Any, name: Any, new: Any) -> None:
    if is_a(value, torch.Tensor | type):
        raise Break(BreakKind.UNSUPPORTED, f"assignment to attribute {name!r} of a {type(value).__name__}")
    tracer.attributes.plain_store(value, name, new)


def _of_name(method: str) -> Callable[..., Any]:
    """Return a handler that asks the tracer's attributes, given a name."""

    def handler(tracer: Tracer, value: Any, name: Any, *new: Any) -> Any:
        return getattr(tracer.attributes, method)(value, name, *new) if is_a(name, str) else NotImplemented

    return handler


def _object_init(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented if len(args) > 1 or kwargs else None


def _object_new(tracer: Tracer, kind: Any, *args: Any, **kwargs: Any) -> Any:
    return tracer.values.mark_fresh(object.__new__(kind)) if is_a(kind, type) else NotImplemented


def _type(tracer: Tracer, value: Any) -> Any:
    if is_a(value, torch.Tensor):
        return tracer.recorder.real_type_of(value)
    return types.GeneratorType if type(value) is SteppedGenerator else type(value)


def _callable(tracer: Tracer, value: Any) -> bool:
    tracer.classes.lookup(type(value), "__call__")
    return callable(value)


def _vars(tracer: Tracer, value: Any) -> Any:
    try:
        return tracer.attributes.load(value, "__dict__")
    except AttributeError:
        raise TypeError("vars() argument must have __dict__ attribute") from None


def _build_class(tracer: Tracer, *args: Any, **kwargs: Any) -> Any:
    assert tracer.frame is not None
    return tracer.values.mark_fresh(build_class(tracer, tracer.frame, *args, **kwargs))


def _globals(tracer: Tracer) -> Any:
    assert tracer.frame is not None
    return tracer.world.exposed_globals(tracer.frame.globals)


def _hash(tracer: Tracer, value: Any) -> Any:
    result = tracer.calls.special(value, "__hash__")
    if result is not MISSING:
        if type(result) is not int:
            return NotImplemented
        fits = -sys.maxsize <= result + 1 <= sys.maxsize + 1 and result != -1  # else CPython hashes it again
        return result if fits else hash(result)
    if is_a(value, torch.Tensor) or tracer.classes.lookup(type(value), "__hash__") is object.__hash__:
        kind = "Tensor" if is_a(value, torch.Tensor) else type(value).__name__
        raise Break(BreakKind.UNSUPPORTED, f"hash() of a {kind} changes on every call")
    return NotImplemented


handle_all(
    {
        hasattr: _of_name("has"),
        setattr: _of_name("store"),
        delattr: _of_name("delete"),
        object.__getattribute__: _of_name("plain_load"),
        object.__delattr__: _of_name("plain_delete"),
        object.__new__: _object_new,
        object.__init__: _object_init,
        object.__init_subclass__: _object_init,
        builtins.__build_class__: _build_class,
        type: _type,
        callable: _callable,
        vars: _vars,
        globals: _globals,
        hash: _hash,
    }
)


def _checked(function: Any, name: str) -> Callable[..., Any]:
    """A class may decide by itself, through its metaclass, what belongs to it."""

    def handler(tracer: Tracer, value: Any, kinds: Any) -> Any:
        if is_a(kinds, tuple):
            return any(tracer.calls.call(function, (value, kind), {}) for kind in kinds)
        if function is isinstance and _type(tracer, value) is kinds:
            return True  # no method is asked then
        if isinstance(value, FakeTensor) and kinds is FakeTensor and tracer.recorder.owns(value):
            return False  # the tensor that it stands for is none
        check = tracer.classes.python_method(kinds, name)
        meta: Any = type(kinds)
        if check is None or is_trusted_class(meta):
            tracer.classes.guard_kinship(value if function is issubclass else _type(tracer, value), kinds)
            return NotImplemented
        return tracer.operators.is_true(tracer.calls.call(check, (kinds, value), {}))

    return handler


handle(isinstance)(_checked(isinstance, "__instancecheck__"))
handle(issubclass)(_checked(issubclass, "__subclasscheck__"))


# Numbers and text


def _as_text(conversion: str) -> Callable[..., Any]:
    return lambda tracer, value: tracer.operators.format(value, conversion, "")


def _as_operator(method: str, name: str) -> Callable[..., Any]:
    return lambda tracer, left, right: getattr(tracer.operators, method)(name, left, right)


@handle(str.format, str.format_map)
def _format_fields(tracer: Tracer, text: str, *args: Any, **kwargs: Any) -> Any:
    if ("." in text or "[" in text) and any(map(has_objects, (*args, *kwargs.values()))):
        raise Break(BreakKind.UNSUPPORTED, "a format that may read parts of objects", "use an f-string")
    return NotImplemented


handle_all({function: _as_operator("binary", name) for name, function in BINARY.items()})
handle_all({function: _as_operator("compare", name) for name, function in COMPARE.items()})
handle_all({conversion: _as_text(conversion.__name__) for conversion in (str, repr, ascii)})
handle_all(
    {
        pow: _as_operator("binary", "POWER"),
        format: lambda tracer, value, spec="": tracer.operators.format(value, "", spec),
        bool: lambda tracer, value: tracer.operators.is_true(value),
        operator.truth: lambda tracer, value: tracer.operators.is_true(value),
        operator.not_: lambda tracer, value: not tracer.operators.is_true(value),
    }
)


# Containers and iteration


def _len(tracer: Tracer, value: Any) -> Any:
    tracer.values.require_known(value)
    result = tracer.calls.special(value, "__len__")
    if result is not MISSING:
        return checked_length(result)
    return tracer.dicts.length(value) if is_a(value, dict) else NotImplemented


def _next(tracer: Tracer, iterator: Any, default: Any = MISSING) -> Any:
    try:
        return tracer.items.next(iterator)
    except StopIteration:
        if default is MISSING:
            raise
        return default


def _dict_get(tracer: Tracer, value: Any, key: Any, default: Any = None) -> Any:
    found = tracer.dicts.get(value, key)
    return default if found is MISSING else found


handle_all(
    {
        len: _len,
        next: _next,
        iter: lambda tracer, value: tracer.items.iterate(value),
        operator.contains: lambda tracer, container, value: tracer.items.contains(container, value),
        operator.getitem: lambda tracer, container, key: tracer.items.get(container, key),
        operator.setitem: lambda tracer, container, key, new: tracer.items.set(container, key, new),
        operator.delitem: lambda tracer, container, key: tracer.items.delete(container, key),
        # Dicts are read key by key as long as that is all that happens to them.
        dict.get: _dict_get,
        collections.OrderedDict.get: _dict_get,
        dict.__getitem__: lambda tracer, value, key: tracer.items.plain_get(value, key),
        dict.__contains__: lambda tracer, value, key: tracer.dicts.has(value, key),
        dict.__len__: lambda tracer, value: tracer.dicts.length(value),
        dict.__setitem__: lambda tracer, value, key, new: tracer.items.plain_set(value, key, new),
        collections.OrderedDict.__setitem__: lambda tracer, value, key, new: tracer.items.plain_set(
            value, key, new
        ),
    }
)


def _any_with(tracer: Tracer, items: Sequence[Any], *names: str) -> bool:
    return any(tracer.classes.python_method(item, name) is not None for item in items for name in names)


def _inline(tracer: Tracer, python: Any, *args: Any) -> Any:
    return tracer.calls.inline(python, args, {})


def _in_python(python: Any) -> Callable[..., Any]:
    """Trace a Python function in the builtin's place."""
    return lambda tracer, iterable: _inline(tracer, python, iterable)


def _search(python: Any) -> Callable[..., Any]:
    """Trace a Python function in the place of a method of lists or tuples, where `==` is Python."""

    def handler(tracer: Tracer, owner: Any, value: Any, *bounds: Any) -> Any:
        items = list(elements(owner))
        if not _any_with(tracer, (value, *items), "__eq__"):
            return NotImplemented
        return _inline(tracer, python, owner, items, value, *bounds)

    return handler


handle_all(
    {
        any: _in_python(python_builtins.any_true),
        all: _in_python(python_builtins.all_true),
        list.index: _search(python_builtins.index),
        tuple.index: _search(python_builtins.index),
        list.count: _search(python_builtins.count),
        tuple.count: _search(python_builtins.count),
        list.remove: _search(python_builtins.remove),
    }
)


class _Ordered:
    """An item as C orders it: each comparison is traced."""

    __slots__ = ("tracer", "value")

    def __init__(self, tracer: Tracer, value: Any) -> None:
        self.tracer, self.value = tracer, value

    def __lt__(self, other: _Ordered) -> bool:
        return self.tracer.operators.is_true(self.tracer.operators.compare("LT", self.value, other.value))


@handle(sorted)
def _sorted(tracer: Tracer, values: Any, *, key: Any = None, reverse: Any = False) -> Any:
    """By C's own sort: which items it compares is seen by a method in Python."""
    items = list(tracer.items.unpack(values))
    keys = items if key is None else [tracer.calls.call(key, (item,), {}) for item in items]
    if _any_with(tracer, keys, "__lt__", "__gt__"):
        keys = [_Ordered(tracer, value) for value in keys]
    places = list(range(len(items)))
    backwards = tracer.operators.is_true(reverse)
    with no_foreign_code("sorted") if has_objects(keys) else nullcontext():
        places.sort(key=keys.__getitem__, reverse=backwards)
    return [items[place] for place in places]


@handle(list.sort)
def _sort(tracer: Tracer, values: Any, **kwargs: Any) -> None:
    values[:] = tracer.calls.call(sorted, (list(values),), kwargs)


def _extreme(function: Any, python: Any) -> Callable[..., Any]:
    """`min` and `max`: by C where nothing in Python compares."""

    def handler(tracer: Tracer, *args: Any, key: Any = None, **default: Any) -> Any:
        if not args or default.keys() - {"default"} or (default and len(args) > 1):
            return function(*args, key=key, **default)  # raises
        items = list(tracer.items.unpack(args[0])) if len(args) == 1 else list(args)
        if not items:
            return function(items, **default)
        keys = items if key is None else [tracer.calls.call(key, (item,), {}) for item in items]
        return _inline(tracer, python, items, keys)

    return handler


handle(min)(_extreme(min, python_builtins.smallest))
handle(max)(_extreme(max, python_builtins.largest))


@handle(sum)
def _sum(tracer: Tracer, values: Any, *start: Any, **named: Any) -> Any:
    """By C where no item is of a class in Python: it rounds in a way of its own."""
    if named.keys() - {"start"} or len(start) + len(named) > 1:
        return NotImplemented
    first = (*start, *named.values(), 0)[0]
    items = list(tracer.items.unpack(values))
    if not any(is_python_class(type(item)) for item in (first, *items)):
        return sum(items, first)
    return _inline(tracer, python_builtins.total, items, first)


@handle(reversed)
def _reversed(tracer: Tracer, value: Any) -> Any:
    result = tracer.calls.special(value, "__reversed__")
    if result is not MISSING:
        return result
    if any(tracer.classes.python_method(value, name) is None for name in ("__getitem__", "__len__")):
        return NotImplemented
    return _inline(tracer, python_builtins.backwards, value)


def call_getter(tracer: Tracer, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an `attrgetter`, `itemgetter` or `methodcaller`: what it does is in how it is pickled."""
    if len(args) != 1 or kwargs:
        return function(*args, **kwargs)  # raises
    kind, arguments, *_ = function.__reduce__()
    if type(function) is operator.methodcaller:
        # With keywords it is pickled as a partial application of the class.
        keywords = kind.keywords if is_a(kind, functools.partial) else {}
        name, *rest = (*kind.args, *arguments) if is_a(kind, functools.partial) else arguments
        return tracer.calls.call_method(args[0], name, tuple(rest), keywords)
    found = []
    for wanted in arguments:
        if type(function) is operator.itemgetter:
            found.append(tracer.items.get(args[0], wanted))
        else:
            found.append(functools.reduce(tracer.attributes.load, wanted.split("."), args[0]))
    return found[0] if len(found) == 1 else tuple(found)


@handle(torch.Tensor.storage_offset)
def _storage_offset(tracer: Tracer, value: Any) -> Any:
    with unseen():
        for source, tensor in tracer.recorder.inputs_in_memory_of(value):
            tracer.values.guards.add(StorageOffset(source, int(tensor.storage_offset())))
    return NotImplemented
