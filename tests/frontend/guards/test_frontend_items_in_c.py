"""Iterators in C that use their items: the methods of these are watched, and what they read is guarded."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import torchrepro

WORLD = SimpleNamespace(limit=1, asked=0)
X = torch.zeros(1)


class Item:
    """Its methods depend on the world, and change it."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __add__(self, other: Item) -> Item:
        WORLD.asked += 1
        return Item(self.value + other.value * WORLD.limit)

    def __eq__(self, other: object) -> bool:
        WORLD.asked += 1
        return self.value >= WORLD.limit

    def __bool__(self) -> bool:
        WORLD.asked += 1
        return self.value > WORLD.limit

    __hash__ = None  # type: ignore[assignment]


def items() -> Iterator[Item]:
    for value in range(4):
        yield Item(value)


def length(values: Any) -> int:
    return len(list(values))


def until(function: Callable[[], Any], sentinel: object) -> int:
    total = 0
    for value in iter(function, sentinel):
        total += value if isinstance(value, int) else value.value
    return total


USES: dict[str, Callable[[], int]] = {
    "accumulate": lambda: sum(each.value for each in itertools.accumulate(items())),
    "accumulate with a function in C": lambda: sum(
        each.value for each in itertools.accumulate(items(), operator.add)
    ),
    "accumulate in a chain": lambda: sum(
        each.value for each in itertools.chain(itertools.accumulate(map(Item, range(4))), items())
    ),
    "groupby": lambda: length(itertools.groupby(items())),
    "groupby of pairs": lambda: length(itertools.groupby((1, each) for each in items())),
    "groupby with a key": lambda: length(itertools.groupby(range(4), key=Item)),
    "groupby with a key in C": lambda: length(itertools.groupby(range(4), list(items()).__getitem__)),
    "compress": lambda: sum(itertools.compress(range(4), items())),
    "dropwhile": lambda: length(itertools.dropwhile(operator.not_, items())),
    "takewhile": lambda: length(itertools.takewhile(operator.not_, items())),
    "filterfalse": lambda: length(itertools.filterfalse(None, items())),
    "a sentinel": lambda: until(list(range(4)).pop, Item(1)),
    "what is compared with a sentinel": lambda: until(functools.partial(list(items()).pop, 0), 7),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_code_in_c_asks_the_items_is_asked_in_every_call(use: Callable[[], int]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + use()

    def seen(call: Callable[[torch.Tensor], torch.Tensor], limit: int) -> tuple[Any, int]:
        WORLD.limit, WORLD.asked = limit, 0
        try:
            result = call(X).tolist()
        except IndexError:  # the sentinel was not met
            result = "IndexError"
        return result, WORLD.asked

    captured = torchrepro.trace(function, backend="eager")
    limits = (1, 2, 0, 1)
    expected = [seen(function, limit) for limit in limits]
    assert len({str(result) for result, _ in expected}) > 1
    assert all(asked for _, asked in expected)
    assert [seen(captured, limit) for limit in limits] == expected


@pytest.mark.parametrize(
    "use",
    [
        lambda x: sum(itertools.accumulate(each for each in range(4))),
        lambda x: sum(itertools.accumulate(x * each for each in range(4))),
        lambda x: length(itertools.groupby(each // 2 for each in range(4))),
        lambda x: length(itertools.groupby(range(4), key=lambda each: each // 2)),
        lambda x: sum(itertools.compress(range(4), (each % 2 for each in range(4)))),
        lambda x: until(list(range(4)).pop, 1),
    ],
)
def test_items_without_methods_in_python_stay_in_one_graph(use: Callable[[Any], Any]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + use(x)

    x = torch.ones(2)
    assert torch.equal(torchrepro.trace(function, backend="eager", fullgraph=True)(x), function(x))
