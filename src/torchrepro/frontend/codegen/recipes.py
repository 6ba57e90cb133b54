"""Recipes: how generated code makes each kind of object.

An object is allocated by the builtin type that its class derives from, and its state is set directly. No code
of the user's runs: no `__init__`, `__setattr__` or `__setitem__`. Their results are in the state. Iterators
are restored to their positions by `__reduce__`, on Python 3.11 to 3.13.
"""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import warnings
from collections import ChainMap, Counter, OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import (
    BuiltinFunctionType,
    BuiltinMethodType,
    CellType,
    FunctionType,
    MappingProxyType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import numpy as np

from torchrepro.frontend.codegen.objects import (
    CannotRebuild,
    attributes,
    dict_items,
    elements,
    is_builtin_error,
    is_full,
    slot_descriptors,
    slots,
)
from torchrepro.frontend.interpreter.generator import SteppedGenerator
from torchrepro.frontend.raw_access import is_a
from torchrepro.frontend.trace.arrays import ArrayMethod, TracedArray, TracedNumber
from torchrepro.torch_api.numpy_arrays import fake_of, is_scalar, is_writeable
from torchrepro.torch_api.numpy_emulation import array_of

if TYPE_CHECKING:
    from torchrepro.frontend.codegen.rebuild import Rebuilder


@dataclass(frozen=True, slots=True)
class Recipe:
    make: Callable[[], str]
    """The expression that makes the object, with the parts that it cannot exist without."""
    fill: Callable[[str], list[str]] = lambda name: []
    """The statements that add the rest to the object in that variable."""


LIBRARY = (OrderedDict, defaultdict, deque, Counter, ChainMap, UserDict, UserList, SimpleNamespace)
"""Classes whose objects need not be made in the trace: they consist of nothing but their state."""

ERROR_FIELDS = {"__suppress_context__": False}
"""Defaults of an error's own fields that are not None (unlike `StopIteration.value`)."""

_DISPLAYS: Mapping[type, str] = {list: "[]", dict: "{}"}

IMMUTABLE: Mapping[type, Callable[[Any], Any]] = {
    kind: getattr(kind, f"__{kind.__name__}__") for kind in (int, float, complex, str, bytes)
}
"""Builtin types whose value is given when an object is allocated, and how it is read bypassing a subclass."""


def tuple_text(r: Rebuilder, values: tuple[Any, ...]) -> str:
    """Return the display of a tuple; the comma is for a tuple of one."""
    return f"({r.sequence(values)}{',' if len(values) == 1 else ''})"


def dict_text(r: Rebuilder, name: str, cls: type) -> str:
    if is_a(cls.__getattribute__, WrapperDescriptorType):
        return f"{name}.__dict__"
    return f"{r.held(object)}.__getattribute__({name}, '__dict__')"


def recipe(r: Rebuilder, value: Any) -> Recipe:
    """Return the recipe of a container, an error or an object of a class."""
    cls = type(value)
    if cls is SteppedGenerator:
        raise CannotRebuild("a generator that has begun")
    plain = cls in CONTENTS or cls is frozenset
    if not (plain or cls in LIBRARY or _is_record(cls) or is_builtin_error(cls) or r.world.is_fresh(value)):
        raise CannotRebuild(f"{_name(cls)}, which was not seen being made")
    if r.world.is_opaque(value):
        raise CannotRebuild(f"{_name(cls)}, which torch raised for tensors without values")
    base = _builtin_base(cls)
    contents = _error_contents if issubclass(base, BaseException) else CONTENTS.get(base)

    def make() -> str:
        if hasattr(cls, "n_sequence_fields"):  # torch.return_types and the like
            _, (fields, others) = value.__reduce__()
            return f"{r.held(cls)}({tuple_text(r, fields)}{f', {r.expression(others)}' if others else ''})"
        arguments = []
        if base is tuple:
            arguments = [tuple_text(r, tuple(tuple.__iter__(value)))]
        elif base is frozenset:
            arguments = [f"[{r.sequence(frozenset.__iter__(value))}]"]
        elif base in IMMUTABLE:
            arguments = [r.expression(IMMUTABLE[base](value))]
        elif issubclass(base, BaseException):
            arguments = [r.expression(each) for each in value.args]
        if plain:
            return _DISPLAYS.get(cls) or f"{r.held(cls)}({', '.join(arguments)})"
        return f"{r.held(base)}.__new__({', '.join((r.held(cls), *arguments))})"

    def fill(name: str) -> list[str]:
        return [
            *(contents(r, name, value) if contents else ()),
            *(
                f"{r.held(slot)}.__set__({name}, {r.expression(held)})"
                for slot, held in _members(base, value)
            ),
            *(
                f"{dict_text(r, name, cls)}[{r.expression(key)}] = {r.expression(held)}"
                for key, held in attributes(value).items()
            ),
        ]

    return Recipe(make, fill)


def _members(base: type, value: Any) -> Iterator[tuple[Any, Any]]:
    descriptors = slot_descriptors(type(value))
    for name, held in slots(value):
        if not issubclass(base, BaseException) or held is not ERROR_FIELDS.get(name):
            yield descriptors[name], held
    if base is defaultdict:
        yield vars(defaultdict)["default_factory"], value.default_factory


def _all_at_once(kind: type, method: str) -> Callable[[Rebuilder, str, Any], list[str]]:
    """Return a writer that fills an object by a method of the builtin type, bypassing overrides."""

    def contents(r: Rebuilder, name: str, value: Any) -> list[str]:
        items = f"{{{r.mapping(dict.items(value))}}}" if kind is dict else f"[{r.sequence(elements(value))}]"
        if len(items) == len("[]"):
            return []
        plain = type(value) is kind
        return [f"{name}.{method}({items})" if plain else f"{r.held(kind)}.{method}({name}, {items})"]

    return contents


def _deque_contents(r: Rebuilder, name: str, value: Any) -> list[str]:
    maxlen = deque.maxlen.__get__(value)
    return [f"{r.held(deque)}.__init__({name}, [{r.sequence(elements(value))}], {maxlen})"]


def _bytearray_contents(r: Rebuilder, name: str, value: Any) -> list[str]:
    return [f"{r.held(bytearray)}.__init__({name}, {bytes(memoryview(value))!r})"]


def _ordered_contents(r: Rebuilder, name: str, value: Any) -> list[str]:
    return [
        f"{r.held(OrderedDict)}.__setitem__({name}, {r.expression(key)}, {r.expression(held)})"
        for key, held in dict_items(value)
    ]


def _error_contents(r: Rebuilder, name: str, value: BaseException) -> list[str]:
    """Return statements that set an error's fields, but no traceback: it would show frames of the tracer."""
    base = r.held(_builtin_base(type(value)))
    links = [(link, getattr(value, link)) for link in ("__cause__", "__context__")]
    return [
        f"{base}.__init__({', '.join((name, *map(r.expression, value.args)))})",
        *(
            f"{base}.{link}.__set__({name}, {r.expression(other)})"
            for link, other in links
            if other is not None
        ),
    ]


CONTENTS: Mapping[type, Callable[[Rebuilder, str, Any], list[str]]] = {
    list: _all_at_once(list, "extend"),
    set: _all_at_once(set, "update"),
    deque: _deque_contents,
    bytearray: _bytearray_contents,
    dict: _all_at_once(dict, "update"),
    OrderedDict: _ordered_contents,
    defaultdict: _all_at_once(dict, "update"),
}
"""What a builtin type itself holds, set by its own methods."""

KNOWN_BASES = {object, tuple, frozenset, SimpleNamespace, *IMMUTABLE, *CONTENTS}


def _builtin_base(cls: type) -> type:
    """Return the type that allocates: the first with a `__new__` in C. Raise for one with unknown fields."""
    for base in cls.__mro__:
        if base in KNOWN_BASES or is_builtin_error(base) or hasattr(base, "n_sequence_fields"):
            return base
        if is_a(vars(base).get("__new__"), BuiltinFunctionType):
            break
    raise CannotRebuild(f"{_name(cls)} has state in C that generated code cannot set")


def _is_record(cls: type) -> bool:
    """Return whether it is a named tuple or a struct sequence: immutable, so a copy can replace it."""
    return (
        issubclass(cls, tuple)
        and cls.__dictoffset__ == 0
        and (hasattr(cls, "_fields") or hasattr(cls, "n_sequence_fields"))
    )


def _name(cls: type) -> str:
    return f"object of type {cls.__module__}.{cls.__qualname__}"


def dict_behind(view: Any) -> dict[Any, Any] | None:
    """Return the dict that a view or an iterator refers to; only `gc.get_referents` has it."""
    return next((it for it in gc.get_referents(view) if is_a(it, dict)), None)


def _view(base: type, method: str) -> Callable[[Rebuilder, Any], Recipe]:
    def recipe(r: Rebuilder, value: Any) -> Recipe:
        return Recipe(lambda: f"{r.held(base)}.{method}({r.expression(dict_behind(value))})")

    return recipe


FILLED_IN = ("__defaults__", "__kwdefaults__", "__annotations__", "__type_params__")
"""What a function has in addition to its code and cells; `__type_params__` from Python 3.12 on."""
DERIVED = ("__name__", "__qualname__", "__doc__", "__module__")
"""What Python derives from the code and the globals, unless it was changed."""
DESCRIPTORS = (MethodDescriptorType, WrapperDescriptorType)


def _function(r: Rebuilder, value: FunctionType) -> Recipe:
    bare = FunctionType(value.__code__, value.__globals__, closure=value.__closure__)

    def make() -> str:
        cells = tuple_text(r, value.__closure__ or ())
        scope = r.writer.read(
            r.world.source_of(value.__globals__) or r.world.kept.hold(value.__globals__, "globals")
        )
        return f"{r.held(FunctionType)}({r.held(value.__code__)}, {scope}, None, None, {cells})"

    def fill(name: str) -> list[str]:
        state = {attribute: held for attribute in FILLED_IN if (held := getattr(value, attribute, None))}
        state |= {
            attribute: getattr(value, attribute)
            for attribute in DERIVED
            if getattr(value, attribute) != getattr(bare, attribute)
        }
        lines = [f"{name}.{attribute} = {r.expression(part)}" for attribute, part in state.items()]
        return lines + _update_dict(r, name, value)

    return Recipe(make, fill)


def _update_dict(r: Rebuilder, name: str, value: Any) -> list[str]:
    extra = r.mapping(vars(value).items())
    return [f"{name}.__dict__.update({{{extra}}})"] if extra else []


def _cell(r: Rebuilder, value: CellType) -> Recipe:
    def fill(name: str) -> list[str]:
        return [f"{name}.cell_contents = {r.expression(value.cell_contents)}"] if is_full(value) else []

    return Recipe(lambda: f"{r.held(CellType)}()", fill)


def _builtin_method(r: Rebuilder, value: Any) -> Recipe:
    """Return the recipe of `[].append` or `x.__add__`: bind the descriptor, so no `__getattribute__` runs."""
    owner, name = value.__self__, value.__name__
    found = (vars(base)[name] for base in type(owner).__mro__ if name in vars(base))
    bound = (it for it in found if is_a(it, DESCRIPTORS) and it.__get__(owner, type(owner)) == value)
    descriptor = next(bound, None)
    if descriptor is None:
        raise CannotRebuild(f"builtin method {value.__qualname__}")
    return Recipe(lambda: f"{r.held(descriptor)}.__get__({r.expression(owner)})")


def _partial(r: Rebuilder, value: functools.partial[Any]) -> Recipe:
    def make() -> str:
        arguments = r.sequence((value.func, *value.args))
        keywords = r.mapping(value.keywords.items())
        return f"{r.held(functools.partial)}({arguments}{f', **{{{keywords}}}' if keywords else ''})"

    return Recipe(make, lambda name: _update_dict(r, name, value))


def _called(parts: Callable[[Any], Iterable[Any]]) -> Callable[[Rebuilder, Any], Recipe]:
    """Return a maker of recipes that call the type of an object with its parts."""
    return lambda r, value: Recipe(lambda: f"{r.held(type(value))}({r.sequence(parts(value))})")


def _array(r: Rebuilder, value: TracedArray) -> Recipe:
    form = f"{is_scalar(value)}, {is_writeable(value)}"
    return Recipe(lambda: f"{r.held(array_of)}({r.expression(fake_of(value))}, {form})")


def _getter(r: Rebuilder, value: Any) -> Recipe:
    """Return the recipe of an `operator.itemgetter` and the like, by `__reduce__`."""
    maker, arguments = value.__reduce__()
    return Recipe(lambda: f"{r.expression(maker)}({r.sequence(arguments)})")


def _quietly(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call without the `DeprecationWarning` of Python 3.12 and 3.13 for itertools methods gone in 3.14."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return call(*arguments)


def _state(value: Any) -> tuple[Any, tuple[Any, ...], Any]:
    try:
        maker, arguments, *state = _quietly(value.__reduce__)
    except (RuntimeError, TypeError) as error:
        raise CannotRebuild(f"iterator of type {type(value).__name__}: {error}") from None
    return maker, arguments, state[0] if state else None


def _iterator(r: Rebuilder, value: Any) -> Recipe:
    """Return the recipe of an iterator; of a set, `OrderedDict` or exhausted one, over a list of the rest."""
    maker, arguments, state = _state(value)

    def make() -> str:
        return f"{r.held(maker)}({', '.join(map(r.settled, arguments))})"

    def fill(name: str) -> list[str]:
        if state is None:
            return []
        return [f"{r.held(_quietly)}({name}.__setstate__, {r.expression(state)})"]

    return Recipe(make, fill)


def _dict_iterator(start: Any, method: str) -> Callable[[Rebuilder, Any], Recipe]:
    """Return a maker of recipes that advance an iterator of the dict itself, which sees later changes."""

    def recipe(r: Rebuilder, value: Any) -> Recipe:
        container = dict_behind(value)
        if container is None:  # exhausted
            return _iterator(r, value)
        passed = len(container) - len(_state(value)[1][0])

        def make() -> str:
            return f"{r.held(start)}({r.held(dict)}.{method}({r.settled(container)}))"

        def fill(name: str) -> list[str]:
            skip = f"{r.held(deque)}({r.held(itertools.islice)}({name}, {passed}), 0)"
            return [skip] if passed else []

        return Recipe(make, fill)

    return recipe


ITERABLES: tuple[Any, ...] = ([], (), "", "é", b"", bytearray(), range(0), range(2**70), set(), OrderedDict())
PLAIN: tuple[type, ...] = (
    *(type(iter(value)) for value in (*ITERABLES, deque(), np.arange(1))),
    *(type(reversed([])), type(reversed(deque())), type(iter(int, 1)), reversed, enumerate, zip, map, filter),
    *(itertools.accumulate, itertools.chain, itertools.combinations, itertools.combinations_with_replacement),
    *(itertools.compress, itertools.count, itertools.cycle, itertools.dropwhile, itertools.filterfalse),
    *(itertools.groupby, itertools.islice, itertools.permutations, itertools.product, itertools.repeat),
    *(itertools.starmap, itertools.takewhile, itertools.zip_longest),
)

_METHODS = ("keys", "values", "items")
_DICT_ITERATORS = {
    type(start(getattr({}, method)())): _dict_iterator(start, method)
    for start in (iter, reversed)
    for method in _METHODS
}
ITERATORS = (*PLAIN, *_DICT_ITERATORS)

RECIPES: Mapping[type, Callable[[Rebuilder, Any], Recipe]] = {
    tuple: lambda r, value: Recipe(lambda: tuple_text(r, value)),
    **dict.fromkeys((TracedArray, TracedNumber), _array),
    ArrayMethod: lambda r, value: Recipe(lambda: f"{r.expression(value.array)}.{value.name}"),
    **{
        type(getattr(base(), method)()): _view(base, method)
        for base in (dict, OrderedDict)
        for method in _METHODS
    },
    FunctionType: _function,
    CellType: _cell,
    BuiltinMethodType: _builtin_method,
    MethodWrapperType: _builtin_method,
    functools.partial: _partial,
    MethodType: _called(lambda it: (it.__func__, it.__self__)),
    staticmethod: _called(lambda it: (it.__func__,)),
    classmethod: _called(lambda it: (it.__func__,)),
    property: _called(lambda it: (it.fget, it.fset, it.fdel, it.__doc__)),
    super: _called(lambda it: (it.__thisclass__, it.__self__)),
    MappingProxyType: _called(gc.get_referents),
    slice: _called(lambda it: (it.start, it.stop, it.step)),
    operator.itemgetter: _getter,
    operator.attrgetter: _getter,
    operator.methodcaller: _getter,
    **dict.fromkeys(PLAIN, _iterator),
    **_DICT_ITERATORS,
}
"""By the exact type; `recipe` has the others."""
