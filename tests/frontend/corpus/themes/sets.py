"""Sets and frozen sets."""

from __future__ import annotations

import torch

from tests.frontend.corpus.registry import case


@case
def construction_and_membership(a, b):
    names = {"x", "y"}
    return "x" in names, "z" not in names, len(names), set("aab"), set(), frozenset([1, 2]), a + len(names)


@case
def changes(a, b):
    items = {1}
    items.add(2)
    items.add(2)
    items.update([3, 4], {5})
    items.discard(9)
    items.remove(1)
    copied = items.copy()
    items.clear()
    return copied, items, a


@case
def algebra(a, b):
    x, y = {1, 2, 3}, {2, 3, 4}
    return (
        x | y,
        x & y,
        x - y,
        x ^ y,
        x.union([9]),
        x.intersection(y),
        x.difference(y),
        x.symmetric_difference(y),
        a,
    )


@case
def algebra_in_place(a, b):
    x = {1, 2, 3, 4}
    x |= {5}
    x &= {1, 2, 5, 7}
    x -= {1}
    x ^= {2, 8}
    y = {1, 2, 3}
    y.intersection_update({2, 3})
    y.difference_update([3])
    y.symmetric_difference_update({7})
    return x, y, a


@case
def comparisons(a, b):
    x, y = {1, 2}, {1, 2, 3}
    return x <= y, x < y, y >= x, x.issubset(y), y.issuperset(x), x.isdisjoint({9}), x == {2, 1}, x != y, b


@case
def removal_of_what_is_not_there(a, b):
    try:
        {1}.remove(2)
    except KeyError as error:
        return error.args, a


@case
def pop_of_the_only_element(a, b):
    items = {7}
    return items.pop(), items, a


@case
def frozen_sets_as_keys(a, b):
    table = {frozenset({1, 2}): a}
    return table[frozenset([2, 1])] + b, frozenset("ab") | {"c"}, hash(frozenset([1])) == hash(frozenset([1]))


@case
def iteration_in_sorted_order(a, b):
    total = 0
    for n in sorted({3, 1, 2}):
        total = total * 10 + n
    return total, a, sum({1, 2, 3}), max({4, 2})


@case
def set_comprehension(a, b):
    return {n % 3 for n in range(10)}, {type(x).__name__ for x in (a, 1)}, {x for x in "hello" if x > "h"}


@case
def tensors_in_a_set(a, b):
    items = {a, b, a}
    return len(items), a in items, (a + 1) in items


@case(make=lambda size: (torch.randn(size, 4), {1, 2}))
def argument_set_is_changed(a, items):
    items.add(3)
    items.discard(1)
    return a * len(items), 3 in items


@case(make=lambda size: (torch.randn(size, 4), frozenset({"relu", "tanh"})))
def argument_frozenset_is_read(a, names):
    if "relu" in names:
        a = torch.relu(a)
    return a, len(names)


@case
def dtypes_in_a_set(a, b):
    if a.dtype in {torch.float32, torch.float64}:
        return a + b
    return a - b
