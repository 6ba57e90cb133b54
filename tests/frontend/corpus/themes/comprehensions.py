"""Comprehensions and generator expressions."""

from __future__ import annotations

import torch

from tests.frontend.corpus.registry import case

FACTORS = [1, 2, 3]


@case
def list_comprehension(a, b):
    return [a * i for i in range(3)], [x for x in (a, b)], [i for i in range(5) if i % 2 if i > 1]


@case
def dict_comprehension(a, b):
    return {f"k{i}": a + i for i in range(2)}, {k: v for k, v in zip("ab", (a, b))}


@case
def set_comprehension(a, b):
    return {i // 2 for i in range(4)}, a


@case
def generator_expression(a, b):
    return (
        sum(a * i for i in range(3)),
        tuple(x + 1 for x in (a, b)),
        list(i for i in "ab"),
        max(i for i in FACTORS),
    )


@case
def nested_comprehensions(a, b):
    return [[a * i + b * j for j in range(2)] for i in range(2)], [
        i + j for i in range(2) for j in range(i + 1)
    ]


@case
def comprehension_with_closure(a, b):
    scale = 3
    return [x * scale + b for x in (a, b)], [(lambda y: y + i)(a) for i in range(2)]


@case
def comprehension_with_walrus(a, b):
    found = [y for x in FACTORS if (y := x * 2) > 2]
    return found, y, a


@case
def comprehension_variable_does_not_leak(a, b):
    i = "outer"
    values = [i for i in range(3)]
    return i, values, a


@case
def comprehension_over_a_tensor(a, b):
    return [row * 2 for row in a], torch.stack([x + y for x, y in zip(a, b)])


@case
def conditional_expression_inside(a, b):
    return [a if i % 2 else b for i in range(3)], {k: (v if v else None) for k, v in {"x": 0, "y": 1}.items()}


@case
def unpacking_inside(a, b):
    return (
        [x + y for x, (y, _) in [(a, (b, 1))]],
        [first for first, *rest in [[1, 2, 3]]],
        [*(i for i in range(2)), a],
    )


@case
def comprehension_in_a_call(a, b):
    return (
        torch.cat([x[:, :2] for x in (a, b)], dim=1),
        dict((str(i), i) for i in range(2)),
        ",".join(str(i) for i in range(3)),
    )


@case
def method_calls_inside(a, b):
    items = []
    [items.append(i) for i in range(3)]
    return items, [s.upper() for s in "ab"], [x.sum(dim=d) for x, d in ((a, 0), (b, 1))]


@case
def nested_function_in_a_comprehension(a, b):
    def f(x):
        return [x + i for i in range(2)]

    return [y for x in (a, b) for y in f(x)]


@case
def global_in_a_comprehension(a, b):
    return [a * f for f in FACTORS], [FACTORS[i] for i in range(3)], any(f == 2 for f in FACTORS)
