"""Rows of the truth table on objects: those that know when they are equal, and those that do not."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from typing import Any

import numpy as np
import torch
from truth_pair import T, bad, good

from torchrepro.nouns.verdict import Difference


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Named(Slotted):
    __slots__ = ("name",)

    def __init__(self, value: Any, name: str) -> None:
        super().__init__(value)
        self.name = name


class Marker:
    """Holds nothing."""


class Bitwise:
    """Equal where all bits are."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bitwise) and torch.equal(self.value, other.value)

    __hash__ = None  # type: ignore[assignment]


class Call:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value


@dataclasses.dataclass
class Output:
    logits: torch.Tensor


def annotated(note: str) -> Output:
    made = Output(T([1.0]))
    made.note = note  # type: ignore[attr-defined]
    return made


def closure(value: Any) -> Any:
    def function() -> Any:
        return value, later

    if value is None:
        later = 1
    return function


def default(value: Any) -> Any:
    def function(given: Any = value) -> Any:
        return given

    return function


def linear(weight: float) -> torch.nn.Module:
    layer = torch.nn.Linear(1, 1)
    torch.nn.init.constant_(layer.weight, weight)
    torch.nn.init.zeros_(layer.bias)
    return layer


def array(*items: Any) -> Any:
    made = np.empty(len(items), dtype=object)
    for index, item in enumerate(items):
        made[index] = item
    return made


ONE, TWO = T([1.0]), T([2.0])
NEAR = T([1.0 + 2**-22])

OBJECTS = [
    good("slots", lambda: (Slotted(ONE), Slotted(ONE.clone()))),
    bad("a slot that differs", lambda: (Slotted(ONE), Slotted(TWO))),
    bad("a slot of the base that differs", lambda: (Named(ONE, "a"), Named(TWO, "a"))),
    bad("a slot of the class that differs", lambda: (Named(ONE, "a"), Named(ONE, "b"))),
    good("objects that hold nothing", lambda: (Marker(), Marker())),
    good("namespaces", lambda: (types.SimpleNamespace(a=ONE), types.SimpleNamespace(a=ONE.clone()))),
    bad("namespaces that differ", lambda: (types.SimpleNamespace(a=ONE), types.SimpleNamespace(a=TWO))),
    good("an equality that knows of no rounding", lambda: (Bitwise(ONE), Bitwise(NEAR), Bitwise(ONE))),
    bad("an equality that is right", lambda: (Bitwise(ONE), Bitwise(TWO))),
    good("objects that can be called", lambda: (Call(ONE), Call(ONE.clone()))),
    bad("objects that can be called and differ", lambda: (Call(ONE), Call(TWO))),
    good("modules", lambda: (linear(1.0), linear(1.0))),
    bad("modules that differ", lambda: (linear(1.0), linear(2.0))),
    good("methods", lambda: (linear(1.0).forward, linear(1.0).forward)),
    good("partial functions", lambda: (functools.partial(max, ONE), functools.partial(max, ONE.clone()))),
    bad("partial functions that differ", lambda: (functools.partial(max, ONE), functools.partial(max, TWO))),
    good("closures", lambda: (closure(ONE), closure(ONE.clone()))),
    bad("what a closure holds", lambda: (closure(ONE), closure(TWO))),
    bad("a variable that only one closure has", lambda: (closure(None), closure(1)), Difference.STRUCTURE),
    bad("what a function takes by default", lambda: (default(1), default(2))),
    good("exceptions", lambda: (ValueError("a"), ValueError("a"))),
    bad("exceptions that say something else", lambda: (ValueError("a"), ValueError("b"))),
    bad("an attribute next to the fields", lambda: (annotated("a"), annotated("b"))),
    bad("the bound of a deque", lambda: (collections.deque([1], 2), collections.deque([1], 3))),
    bad("a default", lambda: (collections.defaultdict(int, a=1), collections.defaultdict(list, a=1))),
    good("values of a dictionary", lambda: ({"a": ONE}.values(), {"a": ONE.clone()}.values())),
    bad("values of a dictionary that differ", lambda: ({"a": ONE}.values(), {"a": TWO}.values())),
    good("keys of a dictionary", lambda: ({"a": 1, "b": 2}.keys(), {"b": 1, "a": 2}.keys())),
    good("items of a dictionary", lambda: ({"a": ONE}.items(), {"a": ONE.clone()}.items())),
    good("an iterator is not exhausted", lambda: (iter([ONE]), iter([ONE.clone()]))),
    good("objects in an array", lambda: (array(ONE, None), array(ONE.clone(), None))),
    bad("objects in an array that differ", lambda: (array(ONE, None), array(TWO, None))),
]
