"""Tuples, named tuples and `typing.NamedTuple`."""

from __future__ import annotations

from collections import namedtuple
from typing import NamedTuple

import torch

from tests.frontend.corpus.registry import case

Pair = namedtuple("Pair", ["left", "right"])
Point = namedtuple("Point", "x y z", defaults=(0, 1))


class Output(NamedTuple):
    hidden: torch.Tensor
    scale: float = 2.0

    def scaled(self):
        return self.hidden * self.scale

    @property
    def size(self):
        return self.hidden.shape


class Stack(tuple):
    def top(self):
        return self[-1]


@case
def construction_and_indexing(a, b):
    pair = a, b
    single = (a,)
    return pair[0] + pair[-1], single, (), pair, len(pair), tuple([1, 2])


@case
def methods_of_tuples(a, b):
    numbers = (1, 2, 2, 3)
    return numbers.index(2), numbers.count(2), numbers + (4,), numbers * 2, 2 in numbers, numbers[1:3], a


@case
def comparison_and_hash(a, b):
    return (1, 2) < (1, 3), (1, 2) == (1, 2), hash((1, 2)) == hash((1, 2)), max((1, 5), (2, 0)), a


@case
def nested_unpacking(a, b):
    (x, y), z = (a, b), (a, 1)
    (*init, last), k = [1, 2, 3], 4
    return x + y, z[0], init, last, k


@case
def named_tuple_by_position_and_name(a, b):
    pair = Pair(a, right=b)
    left, right = pair
    return pair.left + pair.right, pair[0], pair, left is pair.left, len(pair)


@case
def named_tuple_methods(a, b):
    pair = Pair(a, b)
    other = pair._replace(left=b)
    return other, pair._asdict(), Pair._fields, Pair._make([b, a])


@case
def named_tuple_with_defaults(a, b):
    return Point(a), Point(a, y=b), Point(1) == Point(1, 0, 1), Point._field_defaults


@case
def typed_named_tuple(a, b):
    output = Output(a + b)
    return (
        output,
        output.scaled(),
        output.size,
        output._replace(scale=3.0).scaled(),
        isinstance(output, tuple),
    )


@case(make=lambda size: (Pair(torch.randn(size, 4), torch.randn(size, 4)), 3))
def named_tuple_as_argument(pair, n):
    return pair.left * n + pair.right, pair, Pair(*reversed(pair))


@case(make=lambda size: ((torch.randn(size, 4), (torch.randn(size, 4), 2)),))
def nested_tuple_as_argument(values):
    a, (b, n) = values
    return a * n + b, values[1]


@case
def subclass_of_tuple(a, b):
    stack = Stack((a, b))
    return stack.top() + stack[0], isinstance(stack, tuple), len(stack)


@case
def named_tuple_made_inside(a, b):
    Local = namedtuple("Local", ["u", "v"])
    value = Local(a, 2)
    return value.u * value.v, value._fields


@case
def tuple_as_key(a, b):
    table = {(0, "x"): a, (1, "y"): b}
    return table[0, "x"] - table[(1, "y")]


@case
def swapped_by_tuple(a, b):
    pair = (a, b)
    pair = pair[::-1]
    pair += (1,)
    return pair


@case
def tuples_are_immutable(a, b):
    pair = (a, b)
    try:
        pair[0] = b
    except TypeError as error:
        return str(error), pair


@case
def results_of_torch_are_named_tuples(a, b):
    result = torch.max(a, dim=1)
    values, indices = result
    return result.values is values, result[1] is indices, type(result).__name__, result
