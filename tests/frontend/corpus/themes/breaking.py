"""What no capture can keep in one graph: output, clocks, chance, decisions by values. The result is right."""

from __future__ import annotations

import datetime
import json
import logging
import random
import re
import time
import uuid
import warnings

import numpy as np
import torch

from tests.frontend.corpus.registry import case

LOGGER = logging.getLogger("tests.frontend.corpus")
SEEN = []


def positive(size):
    return torch.rand(size, 4) + 0.5, torch.rand(size, 4)


@case(breaks=1)
def printing(a, b):
    c = a + b
    print("shape", c.shape)
    return c * 2


@case(breaks=None)
def printing_in_a_loop(a, b):
    for i in range(3):
        a = a + i
        print(i)
    return a


@case(breaks=1)
def printing_in_an_inner_call(a, b):
    def inner(x):
        print("inner", x.dim())
        return x * 2

    return inner(a + b) + 1


@case(breaks=None, make=positive)
def branch_on_a_sum(a, b):
    if a.sum() > 0:
        return a * 2
    return b


@case(breaks=None, hits=False)
def branch_that_goes_both_ways(a, b):
    if a.mean() > b.mean():
        a = a - b
    else:
        a = b - a
    return a * 2


@case(breaks=None, make=positive)
def item_in_arithmetic(a, b):
    n = a.sum().item()
    return b * n, type(n).__name__


@case(breaks=None)
def while_on_a_value(a, b):
    x = a.abs() + 1
    steps = 0
    while x.max() > 0.5:
        x = x * 0.25
        steps += 1
    return x, steps > 0


@case(breaks=None)
def conversion_to_python(a, b):
    return (
        float(a[0, 0]),
        int(b[0, 0] * 0),
        bool(torch.tensor(True)),
        a.tolist(),
        a[0].sum().item() == a[0].sum().item(),
    )


@case(breaks=None)
def nonzero_and_masks(a, b):
    return a[a > 0], torch.nonzero(b > 0), a.masked_select(b > 0), torch.unique(a.round())


@case(breaks=None)
def size_from_a_value(a, b):
    n = int((a > -100).sum())
    return torch.zeros(n), torch.arange(n) + 1


@case(breaks=None)
def chance_of_python(a, b):
    if random.random() < 2:
        a = a * random.uniform(1, 2)
    return a, random.randint(0, 5), random.choice([1, 2, 3])


@case(breaks=None)
def clocks(a, b):
    started = time.perf_counter()
    c = a @ b.t()
    elapsed = time.perf_counter() - started
    return c, elapsed >= 0


@case(breaks=None)
def dates_and_identifiers(a, b):
    return a + 1, datetime.datetime.now().year > 2000, len(str(uuid.uuid4()))


@case(breaks=None)
def log_records(a, b):
    LOGGER.debug("shape %s", a.shape)
    LOGGER.info("done")
    return a + b


@case(breaks=None)
def warnings_are_given(a, b):
    warnings.warn("careful")
    return a - b


@case(breaks=None)
def numpy_of_a_tensor(a, b):
    array = a.numpy()
    return torch.from_numpy(np.abs(array)) + b, array.shape


@case(breaks=None)
def numpy_numbers(a, b):
    scale = np.sqrt(2.0)
    return a * float(scale), np.float32(1.5) + 1, np.prod(a.shape), np.arange(3)


@case(breaks=None)
def regular_expressions(a, b):
    found = re.match(r"layer\.(\d+)", "layer.12")
    return a * int(found.group(1)), re.sub("a", "b", "banana")


@case(breaks=None)
def json_round_trip(a, b):
    return json.loads(json.dumps({"x": [1, 2]})), a


@case(breaks=None)
def files_of_the_system(a, b):
    import os.path

    return os.path.join("a", "b"), os.path.exists("/no/such/file"), a


@case(breaks=None)
def break_requested(a, b):
    c = a + b
    torch._dynamo.graph_break()
    return c * 2


@case(breaks=None)
def function_that_must_not_be_captured(a, b):
    return skipped(a) + b


@torch.compiler.disable
def skipped(x):
    return x * len(SEEN) + 1


@case(breaks=None)
def assertion_on_values(a, b):
    assert (a == a).all(), "nan"
    return a + 1


@case(breaks=None)
def backward_inside(a, b):
    x = a.clone().requires_grad_(True)
    (x * b).sum().backward()
    return x.grad


@case(breaks=None)
def break_inside_a_with(a, b):
    with torch.no_grad():
        c = a + b
        print("inside", torch.is_grad_enabled())
        c = c * 2
    return c


@case(breaks=None)
def break_inside_try(a, b):
    steps = []
    try:
        c = a + b
        print("in try")
        c = c * 2
    finally:
        steps.append("finally")
    return c, steps


@case(breaks=None)
def break_inside_a_handler(a, b):
    try:
        raise ValueError("x")
    except ValueError as error:
        print("handling", error)
        a = a * 2
    return a + b


@case(breaks=None)
def break_inside_a_comprehension(a, b):
    def noisy(x):
        print("noisy")
        return x + 1

    return [noisy(x) * 2 for x in (a, b)]


@case(breaks=None)
def break_between_changes_of_a_list(a, b):
    items = [a]
    print(len(items))
    items.append(b)
    alias = items
    print(len(alias))
    alias.append(a + b)
    return items


@case(breaks=None, make=lambda size: ([torch.randn(size, 4)], {"n": 1}))
def break_between_changes_of_arguments(items, table):
    items.append(items[0] + 1)
    table["n"] += 1
    print(len(items), table["n"])
    items[0] = items[1] * 2
    table["m"] = items
    return items[0]


@case(breaks=None)
def break_with_a_closure_alive(a, b):
    count = 0

    def bump(x):
        nonlocal count
        count += 1
        return x + count

    a = bump(a)
    print(count)
    a = bump(a)
    return a, count


@case(breaks=None)
def break_with_an_iterator_alive(a, b):
    total = a
    iterator = iter([a, b, a])
    for x in iterator:
        total = total + x
        print("step")
    return total


@case(breaks=None)
def break_with_a_generator_alive(a, b):
    def values():
        yield a
        yield b

    total = 0
    for x in values():
        print("next")
        total = total + x
    return total


@case(breaks=None)
def break_with_zip_and_enumerate_alive(a, b):
    total = torch.zeros_like(a)
    for index, (x, y) in enumerate(zip([a, b], [b, a])):
        print(index)
        total = total + x * index - y
    return total


@case(breaks=None)
def break_with_an_object_alive(a, b):
    class Holder:
        pass

    holder = Holder()
    holder.x = a + 1
    holder.items = [holder.x]
    print("holding")
    holder.x = holder.x + b
    return holder.x, holder.items


@case(breaks=None)
def break_while_arguments_are_on_the_stack(a, b):
    def noisy(x):
        print("noisy")
        return x

    return torch.add(a * 2, noisy(b) + 1, alpha=noisy(2))


@case(breaks=None)
def break_in_the_middle_of_an_expression(a, b):
    return (a + b) * float(a.sum() * 0 + 2) - [b, a][int(b.sum() * 0)]


@case(breaks=None)
def break_with_views_alive(a, b):
    first = a[0]
    print("view")
    first.add_(1)
    return a, first


@case(breaks=None)
def in_place_change_before_a_break(a, b):
    a.add_(1)
    print("changed")
    a.mul_(2)
    return a + b


@case(breaks=None)
def break_in_a_condition_with_and(a, b):
    if a.shape[0] > 1 and (a == a).all() and b is not None:
        return a + b
    return a


@case(breaks=None)
def print_of_a_tensor(a, b):
    c = (a * 0).sum()
    print(c)
    return c + b


@case(breaks=None)
def data_pointer_is_asked(a, b):
    return a.data_ptr() == a.view(-1).data_ptr(), a + b


@case(breaks=None)
def equality_of_tensors(a, b):
    return torch.equal(a, a), torch.allclose(a, a + 1e-9), a.equal(b), torch.isnan(a).any().item()


@case(breaks=None)
def membership_of_a_tensor_in_a_list(a, b):
    x = torch.tensor(1)
    return x in [torch.tensor(2), x], a


@case(breaks=None)
def exec_of_text(a, b):
    space = {"x": 3}
    exec("y = x * 2", space)
    return a * space["y"]


@case(breaks=None)
def formatting_a_value(a, b):
    return f"{(a * 0).sum().item():.2f}", str((b * 0).sum().item())
