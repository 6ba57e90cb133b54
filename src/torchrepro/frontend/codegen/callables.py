"""Recipes of functions made in the captured code, their cells, and small objects made of a few parts."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from types import (
    BuiltinMethodType,
    CellType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.codegen.containers import tuple_text
from torchrepro.frontend.codegen.objects import is_full
from torchrepro.frontend.codegen.recipe import CannotRebuild, Recipe
from torchrepro.frontend.raw_access import is_a

if TYPE_CHECKING:
    from torchrepro.frontend.codegen.values import Rebuilder

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
    """`[].append`, `x.__add__`: bound anew from the descriptor, so that no `__getattribute__` runs."""
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


RECIPES: Mapping[type, Callable[[Rebuilder, Any], Recipe]] = {
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
