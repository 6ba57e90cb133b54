"""Case: a function that shows one behaviour, how its arguments are made, and how often capture may break."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import torch

from tests.frontend.corpus import themes

Function = TypeVar("Function", bound=Callable[..., Any])
Make = Callable[[int], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A row of the corpus. Everything random is seeded by whoever runs it."""

    theme: str
    name: str
    function: Callable[..., Any]
    make: Make
    """Arguments for a call, anew each time: from the size of the first dimension."""
    keep: Callable[[], tuple[Any, ...]]
    """Arguments that stay the same objects from call to call, and come first: a module, an object."""
    keywords: Callable[[int], Mapping[str, Any]]
    breaks: int | None
    """How many; None: any number."""
    state: tuple[str, ...]
    """Globals of the function that it changes: put back before each run, and compared after each call."""
    hits: bool
    """Whether a second call with arguments of the same kind must not be captured again."""

    def __str__(self) -> str:
        return f"{self.theme}.{self.name}"


_CASES: dict[str, Case] = {}


@overload
def case(function: Function, /) -> Function: ...
@overload
def case(
    *,
    make: Make | None = None,
    keep: Callable[[], tuple[Any, ...]] = tuple,
    keywords: Callable[[int], Mapping[str, Any]] = lambda size: {},
    breaks: int | None = 0,
    state: tuple[str, ...] = (),
    hits: bool | None = None,
    name: str = "",
) -> Callable[[Function], Function]: ...
def case(
    function: Any = None,
    /,
    *,
    make: Make | None = None,
    keep: Callable[[], tuple[Any, ...]] = tuple,
    keywords: Callable[[int], Mapping[str, Any]] = lambda size: {},
    breaks: int | None = 0,
    state: tuple[str, ...] = (),
    hits: bool | None = None,
    name: str = "",
) -> Any:
    """Make a function a row of the corpus. Every parameter without a default gets a tensor of n x 4."""

    def register(function: Function) -> Function:
        theme = function.__module__.rpartition(".")[2]
        row = Case(
            theme,
            name or function.__name__,
            function,
            make or _tensors_for(function, less=len(keep())),
            keep,
            keywords,
            breaks,
            state,
            breaks is not None if hits is None else hits,
        )
        if str(row) in _CASES:
            raise ValueError(f"two cases are called {row}: rename one")
        _CASES[str(row)] = row
        return function

    return register if function is None else register(function)


def all_cases() -> list[Case]:
    """Every case of every theme, in the order in which they are written down."""
    for theme in sorted(info.name for info in pkgutil.iter_modules(themes.__path__)):
        importlib.import_module(f"{themes.__name__}.{theme}")
    return list(_CASES.values())


def _tensors_for(function: Callable[..., Any], *, less: int) -> Make:
    wanted = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    return lambda size: tuple(torch.randn(size, 4) for _ in wanted[less:])
