"""Recipes of iterators, which go on where they were. `__reduce__` says how, on Python 3.11 to 3.13."""

from __future__ import annotations

import itertools
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torchrepro.frontend.codegen.containers import dict_behind
from torchrepro.frontend.codegen.recipe import CannotRebuild, Recipe

if TYPE_CHECKING:
    from torchrepro.frontend.codegen.values import Rebuilder


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
    """An iterator of a dict sees later changes of values, so it is made of the dict and moved on."""

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

RECIPES: Mapping[type, Callable[[Rebuilder, Any], Recipe]] = {
    **dict.fromkeys(PLAIN, _iterator),
    **{
        type(start(getattr({}, method)())): _dict_iterator(start, method)
        for start in (iter, reversed)
        for method in ("keys", "values", "items")
    },
}
