"""Recipes of builtin containers, views of dicts, functions, small objects made of a few parts, and iterators.

Iterators go on where they were: `__reduce__` says how, on Python 3.11 to 3.13.
"""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from types import (
    BuiltinMethodType,
    CellType,
    FunctionType,
    MappingProxyType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

import torch

from torchrepro.frontend.codegen.objects import CannotRebuild, Recipe, is_full, tuple_text
from torchrepro.frontend.raw_access import is_a

if TYPE_CHECKING:
    from torchrepro.frontend.codegen.rebuild import Rebuilder


_Recipes = Mapping[type, "Callable[[Rebuilder, Any], Recipe]"]


def _list(r: Rebuilder, value: list[Any]) -> Recipe:
    return Recipe(
        make=lambda: "[]",
        fill=lambda name: r.emit(f"{name}.extend([{r.sequence(value)}])"),
        whole=lambda: f"[{r.sequence(value)}]",
    )


def _dict(r: Rebuilder, value: dict[Any, Any]) -> Recipe:
    return Recipe(
        make=lambda: "{}",
        fill=lambda name: r.emit(f"{name}.update({{{r.mapping(value.items())}}})"),
        whole=lambda: f"{{{r.mapping(value.items())}}}",
    )


def _set(r: Rebuilder, value: set[Any]) -> Recipe:
    return Recipe(
        make=lambda: f"{r.held(set)}()",
        fill=lambda name: r.emit(f"{name}.update([{r.sequence(value)}])"),
        whole=lambda: f"{{{r.sequence(value)}}}" if value else f"{r.held(set)}()",
    )


def _tuple(r: Rebuilder, value: tuple[Any, ...]) -> Recipe:
    return Recipe(lambda: tuple_text(r, value))


def _from_list(r: Rebuilder, value: Any) -> Recipe:
    return Recipe(lambda: f"{r.held(type(value))}([{r.sequence(value)}])")


def _bytearray(r: Rebuilder, value: bytearray) -> Recipe:
    return Recipe(lambda: f"{r.held(bytearray)}({bytes(value)!r})")


def dict_behind(view: Any) -> dict[Any, Any] | None:
    """Return the dict that a view or an iterator refers to; only the garbage collector tells."""
    return next((it for it in gc.get_referents(view) if is_a(it, dict)), None)


def _view(base: type, method: str) -> Callable[[Rebuilder, Any], Recipe]:
    def recipe(r: Rebuilder, value: Any) -> Recipe:
        return Recipe(lambda: f"{r.held(base)}.{method}({r.expression(dict_behind(value))})")

    return recipe


def _proxy(r: Rebuilder, value: MappingProxyType[Any, Any]) -> Recipe:
    (behind,) = gc.get_referents(value)
    return Recipe(lambda: f"{r.held(MappingProxyType)}({r.expression(behind)})")


_CONTAINERS: _Recipes = {
    list: _list,
    dict: _dict,
    set: _set,
    tuple: _tuple,
    frozenset: _from_list,
    torch.Size: _from_list,
    bytearray: _bytearray,
    MappingProxyType: _proxy,
    **{
        type(getattr(base(), method)()): _view(base, method)
        for base in (dict, OrderedDict)
        for method in ("keys", "values", "items")
    },
}


FILLED_IN = ("__defaults__", "__kwdefaults__", "__annotations__", "__type_params__")
"""What a function has besides its code and cells; `__type_params__` from Python 3.12 on."""
DERIVED = ("__name__", "__qualname__", "__doc__", "__module__")
"""What Python derives from the code and the globals, if nobody changed it."""
DESCRIPTORS = (MethodDescriptorType, WrapperDescriptorType)


def _function(r: Rebuilder, value: FunctionType) -> Recipe:
    bare = FunctionType(value.__code__, value.__globals__, closure=value.__closure__)

    def make() -> str:
        cells = tuple_text(r, value.__closure__ or ())
        scope = r.writer.read(
            r.world.source_of(value.__globals__) or r.world.kept.hold(value.__globals__, "globals")
        )
        return f"{r.held(FunctionType)}({r.held(value.__code__)}, {scope}, None, None, {cells})"

    def fill(name: str) -> None:
        state = {attribute: held for attribute in FILLED_IN if (held := getattr(value, attribute, None))}
        state |= {
            attribute: getattr(value, attribute)
            for attribute in DERIVED
            if getattr(value, attribute) != getattr(bare, attribute)
        }
        texts = [(attribute, r.expression(part)) for attribute, part in state.items()]
        extra = r.mapping(vars(value).items())
        for attribute, text in texts:
            r.emit(f"{name}.{attribute} = {text}")
        if extra:
            r.emit(f"{name}.__dict__.update({{{extra}}})")

    return Recipe(make, fill)


def _cell(r: Rebuilder, value: CellType) -> Recipe:
    def fill(name: str) -> None:
        if is_full(value):
            r.emit(f"{name}.cell_contents = {r.expression(value.cell_contents)}")

    def whole() -> str:
        return f"{r.held(CellType)}({r.expression(value.cell_contents) if is_full(value) else ''})"

    return Recipe(lambda: f"{r.held(CellType)}()", fill, whole)


def _builtin_method(r: Rebuilder, value: Any) -> Recipe:
    """`[].append`, `x.__add__`: bound again from the descriptor, so that no `__getattribute__` runs."""
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

    def fill(name: str) -> None:
        if extra := r.mapping(vars(value).items()):
            r.emit(f"{name}.__dict__.update({{{extra}}})")

    return Recipe(make, fill)


def _called(parts: Callable[[Any], Iterable[Any]]) -> Callable[[Rebuilder, Any], Recipe]:
    """Made by calling its type with its parts."""
    return lambda r, value: Recipe(lambda: f"{r.held(type(value))}({r.sequence(parts(value))})")


def _getter(r: Rebuilder, value: Any) -> Recipe:
    """`operator.itemgetter` and its like, which tell how they were made."""
    maker, arguments = value.__reduce__()
    return Recipe(lambda: f"{r.expression(maker)}({r.sequence(arguments)})")


_CALLABLES: _Recipes = {
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
    slice: _called(lambda it: (it.start, it.stop, it.step)),
    operator.itemgetter: _getter,
    operator.attrgetter: _getter,
    operator.methodcaller: _getter,
}


def _quietly(call: Callable[..., Any], *arguments: Any) -> Any:
    """Python 3.12 and 3.13 announce at each use that itertools will have no such methods in 3.14."""
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
    """Of a set or an `OrderedDict`, and of a used-up one, this is an iterator of a list of what is left."""
    maker, arguments, state = _state(value)

    def make() -> str:
        return f"{r.held(maker)}({', '.join(map(r.settled, arguments))})"

    def fill(name: str) -> None:
        if state is not None:
            loud = type(value).__module__ == "itertools"
            call, text = f"{name}.__setstate__", r.expression(state)
            r.emit(f"{r.held(_quietly)}({call}, {text})" if loud else f"{call}({text})")

    return Recipe(make, fill)


def _dict_iterator(start: Any, method: str) -> Callable[[Rebuilder, Any], Recipe]:
    """Make an iterator of the dict itself and move it on: it sees later changes of values."""

    def recipe(r: Rebuilder, value: Any) -> Recipe:
        container = dict_behind(value)
        if container is None:  # used up
            return _iterator(r, value)
        passed = len(container) - len(_state(value)[1][0])

        def make() -> str:
            return f"{r.held(start)}({r.held(dict)}.{method}({r.settled(container)}))"

        def fill(name: str) -> None:
            if passed:
                r.emit(f"{r.held(deque)}({r.held(itertools.islice)}({name}, {passed}), 0)")

        return Recipe(make, fill)

    return recipe


ITERABLES: tuple[Any, ...] = (
    [],
    (),
    "",
    "é",
    b"",
    bytearray(),
    range(0),
    range(2**70),
    set(),
    OrderedDict(),
    deque(),
)
PLAIN: tuple[type, ...] = (
    *(type(iter(value)) for value in ITERABLES),
    *(type(reversed([])), type(reversed(deque())), type(iter(int, 1)), reversed, enumerate, zip, map, filter),
    *(itertools.accumulate, itertools.chain, itertools.combinations, itertools.combinations_with_replacement),
    *(itertools.compress, itertools.count, itertools.cycle, itertools.dropwhile, itertools.filterfalse),
    *(itertools.groupby, itertools.islice, itertools.permutations, itertools.product, itertools.repeat),
    *(itertools.starmap, itertools.takewhile, itertools.zip_longest),
)

_ITERATORS: _Recipes = {
    **dict.fromkeys(PLAIN, _iterator),
    **{
        type(start(getattr({}, method)())): _dict_iterator(start, method)
        for start in (iter, reversed)
        for method in ("keys", "values", "items")
    },
}

RECIPES: _Recipes = {**_CONTAINERS, **_CALLABLES, **_ITERATORS}
