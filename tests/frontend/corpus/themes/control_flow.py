"""Loops, branches, walrus, assertions: all decided by what capture knows."""

from __future__ import annotations

import torch

from tests.frontend.corpus.registry import case


def with_flag(size):
    return torch.randn(size, 4), True, None


@case
def if_elif_else(a, b):
    n = a.shape[0]
    if n == 1:
        c = a
    elif n == 3:
        c = a + b
    else:
        c = a - b
    return c


@case(make=with_flag)
def flags_and_none(a, flag, nothing):
    if flag and nothing is None:
        a = a * 2
    if not flag or nothing is not None:
        a = a * 3
    return a


@case
def while_with_a_counter(a, b):
    i = 0
    while i < 5:
        i += 1
        if i == 2:
            continue
        if i == 4:
            break
        a = a + b * i
    return a, i


@case
def while_else(a, b):
    i = 0
    while i < 2:
        i += 1
    else:
        a = a + 10
    while True:
        i += 1
        if i > 4:
            break
    else:
        a = a * 0
    return a, i


@case
def for_else(a, b):
    for i in range(3):
        if i == 7:
            break
    else:
        a = a + 1
    for i in range(3):
        if i == 1:
            break
    else:
        a = a * 0
    return a, i


@case
def nested_loops_with_break(a, b):
    for i in range(3):
        for j in range(3):
            if j > i:
                break
            a = a + i * j
        else:
            a = a - b
    return a


@case
def boolean_operators_give_operands(a, b):
    return (a.shape[0] and "yes"), (0 or a), (None or b), (0 and a), (not a.shape), (1 and 2 or 3)


@case
def conditional_expressions(a, b):
    n = a.shape[0]
    return a if n > 2 else b, ("x" if n < 0 else "y" if n < 10 else "z")


@case
def chained_comparisons(a, b):
    n = a.shape[0]
    if 0 < n < 10 and 1 <= n != 4:
        return a
    return b


@case
def walrus(a, b):
    if (n := a.shape[0]) > 2:
        a = a * n
    while (n := n - 1) > 0:
        a = a + 1
    return a, n, (m := 5) + m


@case
def assertions_that_hold(a, b):
    assert a.shape == b.shape, "shapes differ"
    assert a.dim() == 2
    return a + b


@case
def assertion_that_fails_is_caught(a, b):
    try:
        assert a.dim() == 3, f"expected 3, got {a.dim()}"
    except AssertionError as error:
        return str(error), a


@case
def early_return_in_a_loop(a, b):
    for i in range(10):
        a = a + b
        if i == 2:
            return a, i
    return b


@case
def pass_and_ellipsis(a, b):
    if a is b:
        pass
    else:
        ...
    return a[...], ...


@case
def is_none_checks(a, b):
    mask = None
    if mask is None:
        mask = torch.ones_like(a)
    if mask is not None:
        a = a * mask
    return a


@case
def loop_variable_survives(a, b):
    for x in (a, b):
        pass
    return x, [x for x in ()]


@case
def accumulate_in_a_loop(a, b):
    h = torch.zeros(4)
    outputs = []
    for t in range(a.shape[0]):
        h = torch.tanh(a[t] + h * 0.5)
        outputs.append(h)
    return torch.stack(outputs), h


@case
def loop_over_pairs_with_step(a, b):
    total = 0
    for i in range(0, 4, 2):
        total = total + a[:, i : i + 2].sum(1)
    return total


@case
def layer_loop_with_a_skip(a, b):
    skip = [1]
    for i in range(3):
        if i in skip:
            continue
        a = torch.relu(a) + (b if i else 0)
    return a


@case
def unrolled_iteration_until_fixed_size(a, b):
    while a.shape[1] > 1:
        a = a[:, ::2] + a[:, 1::2]
    return a, b


@case
def try_in_a_loop(a, b):
    good = 0
    for value in ("1", "x", "3"):
        try:
            good += int(value)
        except ValueError:
            continue
    return a * good


@case
def augmented_everything(a, b):
    n, items, text = 1, [1], "x"
    n += 1
    n **= 3
    n //= 2
    n %= 3
    items += [2]
    items *= 2
    text += "y"
    text *= 2
    return n, items, text, a
