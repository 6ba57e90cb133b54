"""match statements."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests.frontend.corpus.registry import case as row


@dataclass
class Scale:
    factor: float
    bias: float = 0.0


class Shift:
    __match_args__ = ("by",)

    def __init__(self, by):
        self.by = by


def applied(op, x):
    match op:
        case Scale(factor, bias=0.0):
            return x * factor
        case Scale(factor=f, bias=b):
            return x * f + b
        case Shift(by):
            return x + by
        case _:
            return x


@row
def literals(a, b):
    def scale(mode):
        match mode:
            case "double":
                return 2
            case "half" | "one half":
                return 0.5
            case None:
                return 0
            case True:
                return 1
            case _:
                return -1

    return [a * scale(mode) for mode in ("double", "one half", None, True, "other")]


@row
def sequences(a, b):
    def shape_of(value):
        match value:
            case []:
                return "empty"
            case [x]:
                return "one", x
            case [x, y]:
                return "two", x + y
            case [first, *rest]:
                return "many", first, len(rest)

    return shape_of([]), shape_of([a]), shape_of((a, b)), shape_of([a, b, 1]), shape_of("text")


@row
def mappings(a, b):
    def read(config):
        match config:
            case {"kind": "linear", "scale": scale}:
                return a * scale
            case {"kind": kind, **rest}:
                return kind, sorted(rest)
            case {}:
                return "nothing"

    return read({"kind": "linear", "scale": 3}), read({"kind": "conv", "k": 1}), read({})


@row
def classes(a, b):
    return [applied(op, a) for op in (Scale(2.0), Scale(2.0, 1.0), Shift(b), None)]


@row
def types(a, b):
    def kind(value):
        match value:
            case bool():
                return "bool"
            case int(n):
                return "int", n
            case str() | bytes():
                return "text"
            case float(x) if x > 1:
                return "large", x
            case torch.Tensor():
                return "tensor"
            case list() | tuple() as items:
                return "items", len(items)

    return [kind(v) for v in (True, 3, "s", 2.5, 0.5, a, [1], (1, 2))]


@row
def guards(a, b):
    def step(n):
        match n:
            case x if x < 0:
                return "negative"
            case 0:
                return "zero"
            case x if x % 2 == 0:
                return "even", x
            case _:
                return "odd"

    return [step(n) for n in (-1, 0, 4, 5)], a


@row
def dotted_names(a, b):
    match a.dtype:
        case torch.float16:
            return a
        case torch.float32:
            return a + b
    return b


@row
def nested_patterns(a, b):
    match {"op": ("add", [a, b]), "n": 2}:
        case {"op": ("mul", _)}:
            return a
        case {"op": (("add" | "sub") as name, [x, y]), "n": int(n)}:
            return x + y * n, name


@row
def shapes(a, b):
    match a.shape:
        case (n,):
            return n
        case (n, 4):
            return a.sum() * n
        case _:
            return b


@row
def no_match_falls_through(a, b):
    result = "unchanged"
    match a.dim():
        case 5:
            result = "five"
    return result, a
