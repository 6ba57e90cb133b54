"""Handlers: builtins that read parts of objects. Each does what CPython does, through parts of the tracer.

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
from functools import partial, reduce
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import torch

from torchrepro.frontend.graph_breaks import Break, BreakKind, Unsupported
from torchrepro.frontend.guards.kinds import StorageOffset
from torchrepro.frontend.interpreter.generator import SteppedGenerator
from torchrepro.frontend.interpreter.operations import BINARY, COMPARE, build_class
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace import python_builtins
from torchrepro.frontend.trace.arrays import TracedArray
from torchrepro.frontend.trace.classes import MISSING, is_trusted_class
from torchrepro.frontend.trace.fakes import unseen
from torchrepro.frontend.trace.foreign import has_objects, no_foreign_code
from torchrepro.frontend.trace.items import TracedItems
from torchrepro.frontend.trace.operators import checked_length
from torchrepro.frontend.trace.rules import is_native_iterator
from torchrepro.torch_api.fake import FakeTensor
from torchrepro.torch_api.modes import DeviceContext, current_function_modes, no_torch_function
from torchrepro.torch_api.numpy_arrays import fake_of, is_scalar, is_writeable, tensor_in

if TYPE_CHECKING:
    from torchrepro.frontend.trace.tracer import Tracer

Handler = Callable[["Tracer", Sequence[Any], Mapping[str, Any]], Any]

GETTERS: tuple[Any, ...] = (operator.attrgetter, operator.itemgetter, operator.methodcaller)


def _fitting(function: Any, handler: Callable[..., Any]) -> Handler:
    """Return a handler for calls that fit its parameters; for others C raises its own error."""
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


# Attributes and objects


def _getattr(tracer: Tracer, value: Any, name: Any, default: Any = MISSING) -> Any:
    if not is_a(name, str):
        return NotImplemented
    try:
        return tracer.attributes.load(value, name)
    except AttributeError:
        if default is MISSING:
            raise
        return default


def _object_setattr(tracer: Tracer, value: Any, name: Any, new: Any) -> None:
    if is_a(value, torch.Tensor | type):
        raise Unsupported(f"assignment to attribute {name!r} of a {type(value).__name__}")
    tracer.attributes.plain_store(value, name, new)


def _of_name(method: str) -> Callable[..., Any]:
    """Return a handler that calls a method of the tracer's attributes, given a name."""

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
    if is_a(value, TracedArray):
        return value.__class__
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
    return tracer.values.mark_fresh(build_class(tracer, tracer.innermost, *args, **kwargs))


def _hash(tracer: Tracer, value: Any) -> Any:
    result = tracer.calls.special(value, "__hash__")
    if result is not MISSING:
        if type(result) is not int:
            return NotImplemented
        fits = -sys.maxsize <= result + 1 <= sys.maxsize + 1 and result != -1  # else CPython hashes it again
        return result if fits else hash(result)
    if is_a(value, torch.Tensor) or tracer.classes.lookup(type(value), "__hash__") is object.__hash__:
        kind = "Tensor" if is_a(value, torch.Tensor) else type(value).__name__
        raise Unsupported(f"hash() of a {kind} changes on every call")
    return NotImplemented


def _checked(function: Any, name: str) -> Callable[..., Any]:
    """Return a handler of `isinstance` or `issubclass`: a metaclass may decide what belongs to a class."""

    def handler(tracer: Tracer, value: Any, kinds: Any) -> Any:
        if is_a(kinds, tuple):
            return any(tracer.calls.call(function, (value, kind), {}) for kind in kinds)
        if function is isinstance and _type(tracer, value) is kinds:
            return True  # no `__instancecheck__` is called then
        if isinstance(value, FakeTensor) and kinds is FakeTensor and tracer.recorder.owns(value):
            return False  # the tensor that it stands for is not a fake
        check = tracer.classes.python_method(kinds, name)
        meta: Any = type(kinds)
        if check is None or is_trusted_class(meta):
            tracer.classes.guard_kinship(value if function is issubclass else _type(tracer, value), kinds)
            return NotImplemented
        return tracer.operators.is_true(tracer.calls.call(check, (kinds, value), {}))

    return handler


# Operators and text


def _operator(method: str, name: str) -> Callable[..., Any]:
    return lambda tracer, left, right: getattr(tracer.operators, method)(name, left, right)


def _as_text(conversion: str) -> Callable[..., Any]:
    return lambda tracer, value: tracer.operators.format(value, conversion, "")


def _is_true(tracer: Tracer, value: Any) -> bool:
    return tracer.operators.is_true(value)


def _format_fields(tracer: Tracer, text: str, *args: Any, **kwargs: Any) -> Any:
    if ("." in text or "[" in text) and any(map(has_objects, (*args, *kwargs.values()))):
        raise Unsupported("a format that may read parts of objects", "use an f-string")
    return NotImplemented


# Containers and iteration


def _item(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler that calls a method of the tracer's items."""

    @functools.wraps(method)
    def handler(tracer: Tracer, *args: Any) -> Any:
        return method(tracer.items, *args)

    return handler


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


def _in_python(python: Any) -> Callable[..., Any]:
    """Return a handler that traces a Python function in the builtin's place."""
    return lambda tracer, iterable: tracer.calls.inline(python, (iterable,), {})


def _sum(tracer: Tracer, values: Any, *first: Any, start: Any = 0) -> Any:
    """Add what an iterator yields, item by item: what it does later may change what was added before."""
    (start,) = first or (start,)
    lazy = is_a(values, SteppedGenerator) or is_native_iterator(values)
    if not lazy or not is_a(start, int | float | torch.Tensor):
        return NotImplemented
    python: Any = python_builtins.total
    return tracer.calls.inline(python, (values, start), {})


def _sorted(tracer: Tracer, values: Any, *, key: Any = None, reverse: Any = False) -> Any:
    """Sort in C; a comparison in Python is a graph break."""
    items = list(tracer.items.unpack(values))
    keys = items if key is None else [tracer.calls.call(key, (item,), {}) for item in items]
    places = list(range(len(items)))
    backwards = tracer.operators.is_true(reverse)
    with no_foreign_code("sorted") if has_objects(keys) else nullcontext():
        places.sort(key=keys.__getitem__, reverse=backwards)
    return [items[place] for place in places]


def _sort(tracer: Tracer, values: Any, **kwargs: Any) -> None:
    values[:] = tracer.calls.call(sorted, (list(values),), kwargs)


def _extreme(function: Any, better: Any) -> Callable[..., Any]:
    """Return a handler of `min` or `max`, which traces the comparisons, or has the graph choose a tensor."""

    python: Any = python_builtins.extreme

    def handler(tracer: Tracer, *args: Any, key: Any = None, **default: Any) -> Any:
        if not args or default.keys() - {"default"} or (default and len(args) > 1):
            return function(*args, key=key, **default)  # raises
        items = list(tracer.items.unpack(args[0])) if len(args) == 1 else list(args)
        if not items:
            return function(items, **default)
        if key is None and not tracer.log.exact:
            chosen = tracer.recorder.choose(items, better)
            if chosen is not None:
                return chosen
        keys = items if key is None else [tracer.calls.call(key, (item,), {}) for item in items]
        return tracer.calls.inline(python, (items, keys, better), {})

    return handler


def _reversed(tracer: Tracer, value: Any) -> Any:
    result = tracer.calls.special(value, "__reversed__")
    if result is not MISSING:
        return result
    if any(tracer.classes.python_method(value, name) is None for name in ("__getitem__", "__len__")):
        return NotImplemented
    return tracer.calls.call(python_builtins.backwards, (value,), {})


def call_getter(tracer: Tracer, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an `attrgetter`, `itemgetter` or `methodcaller`, whose arguments `__reduce__` gives."""
    if len(args) != 1 or kwargs:
        return function(*args, **kwargs)  # raises
    kind, arguments, *_ = function.__reduce__()
    if type(function) is operator.methodcaller:
        # With keywords it is pickled as a partial application of the class.
        keywords = kind.keywords if is_a(kind, partial) else {}
        name, *rest = (*kind.args, *arguments) if is_a(kind, partial) else arguments
        return tracer.calls.call_method(args[0], name, tuple(rest), keywords)
    if type(function) is operator.itemgetter:
        found = [tracer.items.get(args[0], wanted) for wanted in arguments]
    else:
        found = [reduce(tracer.attributes.load, name.split("."), args[0]) for name in arguments]
    return found[0] if len(found) == 1 else tuple(found)


def _overrides_torch(tracer: Tracer, *values: Any) -> bool:
    """Do what `has_torch_function` does where no mode is active: the recorder is one."""
    kinds = [_type(tracer, value) for value in values]
    found = [tracer.classes.lookup(kind, "__torch_function__") for kind in kinds if kind is not torch.Tensor]
    return any(each not in (MISSING, no_torch_function) for each in found)


def _storage_offset(tracer: Tracer, value: Any) -> Any:
    with unseen():
        for each in tracer.recorder.inputs_in_memory_of(value):
            tracer.values.guards.add(StorageOffset(each.source, int(each.real.storage_offset())))
    return NotImplemented


def _numpy(tracer: Tracer, value: Any, *, force: Any = False) -> Any:
    return tracer.values.array_in(value.detach() if force else value, of_tensor=True)


def _from_numpy(tracer: Tracer, array: Any) -> Any:
    if not is_a(array, TracedArray):
        return NotImplemented
    if is_scalar(array) or not is_writeable(array):
        raise Break(
            BreakKind.RAISES, "torch.from_numpy of a number, or of an array that cannot be written to"
        )
    return tensor_in(array)


def _as_tensor(tracer: Tracer, data: Any, *, dtype: Any = None, device: Any = None) -> Any:
    if not is_a(data, TracedArray):
        return NotImplemented
    if _has_default_device() or (not is_scalar(data) and not is_writeable(data)):
        raise Unsupported("torch.as_tensor of an array for another device or to read only")
    return tensor_in(data).to(dtype=dtype, device=device)


def _has_default_device() -> bool:
    return any(is_a(mode, DeviceContext) for mode in current_function_modes())


def _tensor(tracer: Tracer, data: Any, *, dtype: Any = None, device: Any = None) -> Any:
    """Copy a tensor, as `torch.tensor` does."""
    data = fake_of(data) if is_a(data, TracedArray) else data
    if not is_a(data, torch.Tensor) or _has_default_device():
        return NotImplemented
    return data.detach().to(dtype=dtype, device=data.device if device is None else device, copy=True)


_TABLE: Mapping[Any, Callable[..., Any]] = {
    getattr: _getattr,
    hasattr: _of_name("has"),
    setattr: _of_name("store"),
    delattr: _of_name("delete"),
    object.__getattribute__: _of_name("plain_load"),
    object.__setattr__: _object_setattr,
    object.__delattr__: _of_name("plain_delete"),
    object.__new__: _object_new,
    object.__init__: _object_init,
    object.__init_subclass__: _object_init,
    builtins.__build_class__: _build_class,
    type: _type,
    callable: _callable,
    vars: _vars,
    globals: lambda tracer: tracer.world.exposed_globals(tracer.innermost.globals),
    hash: _hash,
    isinstance: _checked(isinstance, "__instancecheck__"),
    issubclass: _checked(issubclass, "__subclasscheck__"),
    **{function: _operator("binary", name) for name, function in BINARY.items()},
    **{function: _operator("compare", name) for name, function in COMPARE.items()},
    **{conversion: _as_text(conversion.__name__) for conversion in (str, repr, ascii)},
    pow: _operator("binary", "POWER"),
    format: lambda tracer, value, spec="": tracer.operators.format(value, "", spec),
    bool: _is_true,
    operator.truth: _is_true,
    operator.not_: lambda tracer, value: not tracer.operators.is_true(value),
    **dict.fromkeys((str.format, str.format_map), _format_fields),
    len: _len,
    next: _next,
    iter: _item(TracedItems.iterate),
    operator.contains: _item(TracedItems.contains),
    operator.getitem: _item(TracedItems.get),
    operator.setitem: _item(TracedItems.set),
    operator.delitem: _item(TracedItems.delete),
    # Dicts are read key by key as long as that is all that happens to them.
    **dict.fromkeys((dict.get, collections.OrderedDict.get), _dict_get),
    dict.__getitem__: _item(TracedItems.plain_get),
    dict.__contains__: lambda tracer, value, key: tracer.dicts.has(value, key),
    dict.__len__: lambda tracer, value: tracer.dicts.length(value),
    **dict.fromkeys((dict.__setitem__, collections.OrderedDict.__setitem__), _item(TracedItems.plain_set)),
    any: _in_python(python_builtins.any_true),
    all: _in_python(python_builtins.all_true),
    min: _extreme(min, operator.lt),
    max: _extreme(max, operator.gt),
    sorted: _sorted,
    sum: _sum,
    list.sort: _sort,
    reversed: _reversed,
    torch.tensor: _tensor,
    torch.as_tensor: _as_tensor,
    torch.from_numpy: _from_numpy,
    torch.Tensor.numpy: _numpy,
    torch.Tensor.storage_offset: _storage_offset,
    torch.overrides.has_torch_function: lambda tracer, values: _overrides_torch(tracer, *values),
    torch.overrides.has_torch_function_unary: _overrides_torch,
    torch.overrides.has_torch_function_variadic: _overrides_torch,
}
HANDLERS: dict[Any, Handler] = {function: _fitting(function, handler) for function, handler in _TABLE.items()}
"""By the function itself. A handler returns `NotImplemented` to have the function called like any other."""
