"""`itertools`."""

from __future__ import annotations

import itertools
import operator
from itertools import (
    accumulate,
    chain,
    combinations,
    count,
    groupby,
    islice,
    pairwise,
    product,
    repeat,
    zip_longest,
)

import torch

from tests.frontend.corpus.registry import case


@case
def chains(a, b):
    return [x.sum() for x in chain([a], (b, a))], list(chain.from_iterable([[1], (2, 3)])), list(chain())


@case
def products(a, b):
    return (
        list(product([1, 2], "ab")),
        list(product(range(2), repeat=2)),
        [x * n for x, n in product((a, b), (1, 2))],
    )


@case
def combinations_and_permutations(a, b):
    return (
        list(combinations([1, 2, 3], 2)),
        list(itertools.permutations("abc", 2)),
        [x + y for x, y in combinations([a, b, a * 2], 2)],
        list(itertools.combinations_with_replacement("ab", 2)),
    )


@case
def accumulations(a, b):
    return (
        list(accumulate([1, 2, 3])),
        list(accumulate([a, b, a])),
        list(accumulate([1, 2, 3], operator.mul)),
        list(accumulate([1, 2], initial=10)),
    )


@case
def slices_of_iterators(a, b):
    return (
        list(islice(range(10), 3)),
        list(islice(range(10), 2, 8, 3)),
        list(islice(count(5), 2)),
        next(islice([a, b], 1, None)),
    )


@case
def repeats_and_cycles(a, b):
    return (
        list(repeat(1, 3)),
        [x * n for x, n in zip([a, b], repeat(2))],
        list(islice(itertools.cycle("ab"), 5)),
    )


@case
def taking_and_dropping(a, b):
    numbers = [1, 3, 6, 2, 8]
    return (
        list(itertools.takewhile(lambda n: n < 5, numbers)),
        list(itertools.dropwhile(lambda n: n < 5, numbers)),
        a,
    )


@case
def groups(a, b):
    return (
        [(key, list(group)) for key, group in groupby([1, 1, 2, 3, 3])],
        {k: len(list(g)) for k, g in groupby("aabc")},
        [k for k, _ in groupby([1, 3, 2], key=lambda n: n % 2)],
        a,
    )


@case
def pairs_and_longest(a, b):
    return (
        [y - x for x, y in pairwise([a, b, a])],
        list(zip_longest([1, 2], "a")),
        list(zip_longest([1], [2, 3], fillvalue=0)),
    )


@case
def starmap_and_compress(a, b):
    return (
        list(itertools.starmap(torch.add, [(a, b), (b, 1)])),
        list(itertools.compress("abc", [1, 0, 1])),
        list(itertools.filterfalse(lambda n: n % 2, range(4))),
    )


@case
def counts(a, b):
    numbers = count(1, 2)
    return (
        next(numbers),
        next(numbers),
        [x * n for x, n in zip((a, b), count())],
        list(zip(count(10, -1), "ab")),
    )


@case
def tee(a, b):
    first, second = itertools.tee([a, b])
    return next(first), list(second), list(first)


@case
def lazy_iterators_in_loops(a, b):
    total = a
    for x, n in zip(chain([a, b], repeat(b, 2)), count(1)):
        total = total + x * n
    return total


@case
def a_window_over_layers(a, b):
    widths = [4, 8, 2]
    for fan_in, fan_out in pairwise(widths):
        a = a @ torch.ones(fan_in, fan_out)
    return a, b


@case
def an_iterator_used_twice(a, b):
    iterator = chain([1], [2, 3])
    head = next(iterator)
    return head, list(iterator), list(iterator), a
