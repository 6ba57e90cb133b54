"""Builtins that look inside objects: each does what CPython does, through the operations of the trace."""

from __future__ import annotations

import _thread
import builtins
import copyreg
import math
import operator
import string
import sys
import types
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import torch

from torchrepro.frontend.graph_breaks import Break, BreakKind
from torchrepro.frontend.guards.kinds import Length, StorageOffset
from torchrepro.frontend.interpreter.callers import build_class, locals_of
from torchrepro.frontend.interpreter.generator import SteppedGenerator
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.source import Attribute
from torchrepro.frontend.trace.classes import MISSING
from torchrepro.frontend.trace.fakes import unseen
from torchrepro.frontend.trace.foreign import has_objects, natively
from torchrepro.frontend.trace.operators import checked_length
from torchrepro.frontend.trace.sizes import numel

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer

Handler = Callable[["Tracer", Sequence[Any], Mapping[str, Any]], Any]

_FORMATTER = string.Formatter()

SPECIAL: dict[Any, Handler] = {}
"""By the function itself. A handler returns `NotImplemented` to have the function called as any other."""


def special(
    *functions: Any, least: int = 1, most: float | None = None, keywords: Set[str] | None = frozenset()
) -> Callable[[Handler], Handler]:
    """Register a handler for calls with as many arguments as it takes: C says what is wrong with others.

    `keywords`: None for any.
    """

    def register(handler: Handler) -> Handler:
        for function in functions:
            SPECIAL[function] = _checked(function, handler)
        return handler

    def _checked(function: Any, handler: Handler) -> Handler:
        owner = getattr(function, "__objclass__", object)

        def checked(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            fits = least <= len(args) <= (least if most is None else most)
            known = keywords is None or kwargs.keys() <= keywords
            if not fits or not known or (args and not issubclass(type(args[0]), owner)):
                return NotImplemented
            return handler(tracer, args, kwargs)

        return checked

    return register


@special(getattr, least=2, most=3)
def _getattr(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not is_a(args[1], str):
        return NotImplemented
    try:
        return tracer.attributes.load(args[0], args[1])
    except AttributeError:
        if len(args) == 3:
            return args[2]
        raise


@special(hasattr, least=2)
def _hasattr(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return tracer.attributes.has(*args) if is_a(args[1], str) else NotImplemented


@special(setattr, least=3)
def _setattr(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not is_a(args[1], str):
        return NotImplemented
    tracer.attributes.store(*args)
    return None


@special(delattr, least=2)
def _delattr(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not is_a(args[1], str):
        return NotImplemented
    tracer.attributes.delete(*args)
    return None


@special(object.__setattr__, least=3)
def _object_setattr(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if is_a(args[0], torch.Tensor | type):
        raise Break(
            BreakKind.UNSUPPORTED, f"assignment to attribute {args[1]!r} of a {type(args[0]).__name__}"
        )
    tracer.attributes.plain_store(*args)
    return None


@special(object.__delattr__, least=2)
def _object_delattr(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tracer.attributes.plain_delete(*args)
    return None


@special(object.__getattribute__, least=2)
def _object_getattribute(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return tracer.attributes.plain_load(args[0], args[1])


def _object_new(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not args or not is_a(args[0], type):
        return NotImplemented
    return tracer.values.mark_fresh(object.__new__(args[0]))


def _object_init(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return NotImplemented if len(args) > 1 or kwargs else None


SPECIAL |= {
    object.__new__: _object_new,
    object.__init__: _object_init,
    object.__init_subclass__: _object_init,
}


@special(type)
def _type(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if is_a(args[0], torch.Tensor):
        return tracer.recorder.real_type_of(args[0])
    return types.GeneratorType if type(args[0]) is SteppedGenerator else type(args[0])


@special(len)
def _len(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    (value,) = args
    tracer.values.require_known(value)
    result = tracer.calls.special(value, "__len__")
    if result is not MISSING:
        return checked_length(result)
    return tracer.dicts.length(value) if is_a(value, dict) else NotImplemented


@special(bool)
def _bool(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return tracer.operators.is_true(args[0])


@special(iter)
def _iter(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return tracer.items.iterate(args[0])


@special(next, most=2)
def _next(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return tracer.items.next(args[0])
    except StopIteration:
        if len(args) == 2:
            return args[1]
        raise


@special(callable)
def _callable(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    tracer.classes.lookup(type(args[0]), "__call__")
    return callable(args[0])


@special(vars, least=0, most=1)
def _vars(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not args:
        raise Break(BreakKind.UNSUPPORTED, "vars() is about the variables of a frame")
    try:
        return tracer.attributes.load(args[0], "__dict__")
    except AttributeError:
        raise TypeError("vars() argument must have __dict__ attribute") from None


def _as_text(conversion: str) -> Handler:
    def handler(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return tracer.operators.format(args[0], conversion, "")

    return handler


for _conversion in (str, repr, ascii):
    special(_conversion)(_as_text(_conversion.__name__))


@special(list.__repr__, tuple.__repr__, dict.__repr__)
def _repr_of_container(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return (
        tracer.operators.format(args[0], "repr", "")
        if type(args[0]) in (list, tuple, dict)
        else NotImplemented
    )


@special(format, most=2)
def _format(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return tracer.operators.format(args[0], "", args[1] if len(args) > 1 else "")


@special(str.format, str.format_map, most=math.inf, keywords=None)
def _format_fields(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    parts = any(field and ("." in field or "[" in field) for _, field, _, _ in _FORMATTER.parse(args[0]))
    if parts and any(map(has_objects, (*args[1:], *kwargs.values()))):
        raise Break(BreakKind.UNSUPPORTED, "a format that reads parts of objects", "use an f-string")
    return NotImplemented


def _build_class(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    assert tracer.frame is not None
    return tracer.values.mark_fresh(build_class(tracer, tracer.frame, *args, **kwargs))


SPECIAL[builtins.__build_class__] = _build_class


@special(locals, least=0)
def _locals(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    frame = tracer.frame
    assert frame is not None
    if frame.names is not None:
        return frame.names
    found = {name: tracer.variables.load_local(frame, name) for name in list(frame.locals)}
    return {**locals_of(frame), **found}


@special(globals, least=0)
def _globals(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    assert tracer.frame is not None
    return tracer.world.exposed_globals(tracer.frame.globals)


@special(_thread.get_ident, least=0)
def _thread_id(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    # `reprlib` tells threads apart by it while an object is shown, and forgets it.
    return _thread.get_ident() if tracer.natives.in_standard_library() else NotImplemented


@special(object.__reduce_ex__, least=2)
def _reduce(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """How `copy` takes an object apart: by the attributes that it has in the trace.

    To ask `object` would run a `__getattribute__` of the user's.
    """
    value = args[0]
    if is_a(value, list | dict | tuple | set):
        return natively("a copy", object.__reduce_ex__, *args)
    space = tracer.world.expose_instance(value)
    if space is None or any("__slots__" in base.__dict__ for base in type(value).__mro__[:-1]):
        if tracer.values.is_fresh(value):
            return natively("a copy", object.__reduce_ex__, *args)
        raise Break(BreakKind.UNSUPPORTED, f"a copy of a {type(value).__name__}, which has slots")
    for name in ("__reduce__", "__getstate__", "__getnewargs__", "__getnewargs_ex__"):
        if tracer.classes.python_method(value, name) is not None:
            raise Break(BreakKind.UNSUPPORTED, f"a copy of a {type(value).__name__} by its {name}")
    tracer.dicts.complete(space)
    return copyreg.__newobj__, (type(value),), dict(space), None, None  # type: ignore[attr-defined]


@special(torch.Tensor.__deepcopy__, least=2)
def _copy_tensor(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    value, memo = args
    if id(value) in memo:
        return memo[id(value)]
    if value.requires_grad or tracer.recorder.real_type_of(value) is not torch.Tensor:
        return NotImplemented
    real, source = tracer.recorder.real_of(value), tracer.values.source_of(value)
    if tracer.values.put_onto(value) or (real is not None and (source is None or real.__dict__)):
        return NotImplemented  # what the user has put onto it is copied as well
    if source is not None:
        tracer.values.guards.add(Length(Attribute(source, "__dict__"), 0))
    memo[id(value)] = value.detach().clone()
    return memo[id(value)]


@special(reversed)
def _reversed(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    (value,) = args
    result = tracer.calls.special(value, "__reversed__")
    if result is not MISSING:
        return result
    if (
        tracer.classes.python_method(value, "__getitem__") is None
        or tracer.classes.python_method(value, "__len__") is None
    ):
        return NotImplemented
    count = tracer.calls.call(len, (value,), {})
    return iter([tracer.items.get(value, index) for index in reversed(range(count))])


@special(id)
def _id(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    # A number of this call alone: it may serve to tell objects apart within the standard library, no more.
    if tracer.natives.in_standard_library():
        number = id(args[0])
        tracer.values.numbers_of_objects.add(number)
        return number
    return NotImplemented


@special(hash)
def _hash(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    result = tracer.calls.special(args[0], "__hash__")
    if result is not MISSING:
        if type(result) is not int:
            return NotImplemented
        fits = -sys.maxsize <= result + 1 <= sys.maxsize + 1 and result != -1  # else CPython hashes it again
        return result if fits else hash(result)
    if is_a(args[0], torch.Tensor) or tracer.classes.lookup(type(args[0]), "__hash__") is object.__hash__:
        kind = "Tensor" if is_a(args[0], torch.Tensor) else type(args[0]).__name__
        raise Break(BreakKind.UNSUPPORTED, f"hash() of a {kind} is another in each call")
    return NotImplemented


def _by_method(kind: type, *names: str) -> Handler:
    """Ask the object's class, where it is written in Python. C says what is wrong with what it gives."""

    def handler(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        for name in names:
            result = tracer.calls.special(args[0], name, *args[1:])
            if result is not MISSING:
                return result if kind is object or type(result) is kind else NotImplemented
        return NotImplemented

    return handler


for _function, _handler in {
    abs: _by_method(object, "__abs__"),
    round: _by_method(object, "__round__"),
    int: _by_method(int, "__int__", "__index__"),
    float: _by_method(float, "__float__"),
    complex: _by_method(complex, "__complex__"),
    bytes: _by_method(bytes, "__bytes__"),
    operator.index: _by_method(int, "__index__"),
    math.trunc: _by_method(object, "__trunc__"),
    math.floor: _by_method(object, "__floor__"),
    math.ceil: _by_method(object, "__ceil__"),
}.items():
    special(_function, most=2)(_handler)


@special(torch.Tensor.storage_offset)
def _storage_offset(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with unseen():
        for source, tensor in tracer.recorder.inputs_in_memory_of(args[0]):
            tracer.values.guards.add(StorageOffset(source, int(tensor.storage_offset())))
    return NotImplemented


@special(torch.Size.numel)
def _size_numel(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return numel(args[0])


@special(pow, least=2, most=3)
def _pow(tracer: Tracer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if len(args) == 2:
        return tracer.operators.binary("POWER", *args)
    result = tracer.calls.special(args[0], "__pow__", *args[1:])
    return NotImplemented if result is MISSING else result
