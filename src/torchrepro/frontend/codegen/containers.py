"""Recipes of builtin containers and of views of dicts."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from torchrepro.frontend.codegen.recipe import Recipe
from torchrepro.frontend.raw_access import is_a

if TYPE_CHECKING:
    from torchrepro.frontend.codegen.values import Rebuilder


def tuple_text(r: Rebuilder, values: tuple[Any, ...]) -> str:
    """A display; the comma is for a tuple of one."""
    return f"({r.sequence(values)}{',' if len(values) == 1 else ''})"


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
    """The dict that a view or an iterator refers to; only the garbage collector tells."""
    return next((it for it in gc.get_referents(view) if is_a(it, dict)), None)


def _view(base: type, method: str) -> Callable[[Rebuilder, Any], Recipe]:
    def recipe(r: Rebuilder, value: Any) -> Recipe:
        return Recipe(lambda: f"{r.held(base)}.{method}({r.expression(dict_behind(value))})")

    return recipe


def _proxy(r: Rebuilder, value: MappingProxyType[Any, Any]) -> Recipe:
    (behind,) = gc.get_referents(value)
    return Recipe(lambda: f"{r.held(MappingProxyType)}({r.expression(behind)})")


RECIPES: Mapping[type, Callable[[Rebuilder, Any], Recipe]] = {
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
