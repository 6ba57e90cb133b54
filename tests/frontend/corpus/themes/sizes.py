"""`torch.Size`: a tuple that knows how many elements it stands for."""

from __future__ import annotations

import math

import torch

from tests.frontend.corpus.registry import case


@case
def numel_of_a_size(a, b):
    return a.shape.numel(), b.shape[1:].numel(), torch.Size([2, 3]).numel(), a


@case
def index_and_count(a, b):
    return a.shape.index(4), a.shape.count(4), 4 in b.shape, 7 not in b.shape


@case
def slices_of_a_size(a, b):
    return a.shape[:-1], a.shape[-1:], b.shape[::-1], type(a.shape[:1]).__name__


@case
def concatenation_with_tuples(a, b):
    return a.view(a.shape[:-1] + (2, 2)), a.shape + b.shape, (1,) + tuple(b.shape), a.new_zeros((2, *a.shape))


@case
def unpacking_of_a_size(a, b):
    n, m = a.shape
    first, *rest = b.size()
    return n + m, first, rest, a.reshape(m, n)


@case
def comparison_of_sizes(a, b):
    return (
        a.shape == b.shape,
        a.shape == (3, 4),
        a.shape != b.t().shape,
        a.shape < (9, 9),
        a.shape == torch.Size([3, 4]),
    )


@case
def conversions_of_a_size(a, b):
    return (
        list(a.shape),
        tuple(b.shape),
        torch.Size((1, 2)),
        torch.Size(list(a.shape)),
        len(a.shape),
        str(a.shape),
    )


@case
def loops_over_a_size(a, b):
    total = 1
    for n in a.shape:
        total *= n
    return total, math.prod(b.shape), sum(a.shape), max(a.shape), [n * 2 for n in b.shape], a / total


@case
def size_as_key(a, b):
    table = {a.shape: a, (1, 2): b}
    return table[b.shape], hash(a.shape) == hash(tuple(a.shape))


@case
def size_times_number(a, b):
    return a.shape * 2, 2 * b.shape, a.reshape(a.shape), a.expand(torch.Size([2]) + a.shape)


@case
def isinstance_of_a_size(a, b):
    return (
        isinstance(a.shape, tuple),
        isinstance(a.shape, torch.Size),
        isinstance(a.shape, list),
        bool(a.shape),
    )


@case
def sizes_with_enumerate_and_zip(a, b):
    return (
        [(i, n) for i, n in enumerate(a.shape)],
        [x == y for x, y in zip(a.shape, b.shape)],
        dict(enumerate(b.shape)),
    )


@case
def negative_index_and_bounds(a, b):
    try:
        return a.shape[5], a
    except IndexError as error:
        return str(error), a + a.shape[-1]
