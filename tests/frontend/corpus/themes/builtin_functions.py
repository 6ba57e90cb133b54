"""Builtin functions: iteration, types, attributes, identity, copying."""

from __future__ import annotations

import copy

import torch

from tests.frontend.corpus.registry import case


class Holder:
    kind = "holder"

    def __init__(self, value):
        self.value = value

    def double(self):
        return self.value * 2


@case
def map_and_filter(a, b):
    return (
        list(map(torch.relu, [a, b])),
        list(filter(None, [0, 1, "", "x"])),
        list(map(lambda x, y: x * y, [a, b], [2, 3])),
        list(filter(lambda n: n % 2, range(5))),
    )


@case
def zip_and_its_strictness(a, b):
    pairs = list(zip([a, b], [1, 2]))
    try:
        list(zip([1], [1, 2], strict=True))
    except ValueError as error:
        return pairs, str(error), dict(zip("ab", [a, b])), list(zip()), list(zip(*[(1, 2), (3, 4)]))


@case
def enumerate_with_a_start(a, b):
    total = torch.zeros_like(a)
    for number, value in enumerate([a, b], start=1):
        total = total + number * value
    return total, list(enumerate("xy", 5))


@case
def reversed_and_sorted(a, b):
    return (
        list(reversed([1, 2, a])),
        sorted([3, 1], reverse=True),
        sorted("bca"),
        sorted({"b": 1, "a": 2}),
        sorted([(2, a), (1, b)], key=lambda p: p[0]),
    )


@case
def any_and_all(a, b):
    return (
        any([0, 1]),
        all([]),
        any(x > 2 for x in (1, 2)),
        all(isinstance(x, torch.Tensor) for x in (a, b)),
        a,
    )


@case
def sums_of_tensors_and_numbers(a, b):
    return (
        sum([a, b]),
        sum([1, 2], 10),
        sum([a, b], torch.zeros_like(a)),
        sum(x.sum() for x in (a, b)),
        sum([[1], [2]], []),
    )


@case
def minima_and_maxima(a, b):
    return (
        max(1, 2),
        min([3, 1]),
        max([], default=7),
        max("aa", "b", key=len),
        min([(1, "z"), (0, "a")]),
        max({3: 1, 5: 0}),
        a,
    )


@case
def types_and_instances(a, b):
    return (
        isinstance(a, torch.Tensor),
        isinstance(3, (str, int)),
        issubclass(bool, int),
        type(3) is int,
        type(a) == torch.Tensor,
        type([]).__name__,
        type(None),
        isinstance(None, type(None)),
    )


@case
def union_types_in_isinstance(a, b):
    return isinstance(3, int | str), isinstance(a, torch.Tensor | None), a + b


@case
def attributes_by_name(a, b):
    holder = Holder(a)
    setattr(holder, "other", b)
    first = hasattr(holder, "other"), hasattr(holder, "missing")
    value = getattr(holder, "value") + getattr(holder, "other") * getattr(holder, "missing", 3)
    delattr(holder, "other")
    return (
        value,
        first,
        hasattr(holder, "other"),
        getattr(holder, "double")(),
        vars(holder) is holder.__dict__,
    )


@case
def callables(a, b):
    return callable(torch.relu), callable(3), callable(lambda: 0), callable(Holder), callable(Holder(a)), a


@case(breaks=None)
def identities(a, b):
    x = [a]
    y = x
    return x is y, x is not [a], None is None, id(x) == id(y), a is x[0], type(a) is type(b)


@case
def iter_and_next(a, b):
    iterator = iter([a, b])
    first = next(iterator)
    second = next(iterator)
    return first - second, next(iterator, "end"), next(iter({"k": 1}))


@case
def iter_with_a_sentinel(a, b):
    numbers = [1, 2, 0, 3]
    return list(iter(lambda: numbers.pop(), 1)), a


@case
def stop_iteration_is_caught(a, b):
    iterator = iter([1])
    next(iterator)
    try:
        next(iterator)
    except StopIteration as stop:
        return stop.args, a


@case
def types_made_by_calls(a, b):
    return (
        list((1, 2)),
        tuple([1]),
        set([1, 1]),
        dict(a=1),
        str(3),
        int("3"),
        float(1),
        bool([]),
        frozenset("a"),
        bytes(2),
        complex(1),
        a,
    )


@case
def shallow_copies(a, b):
    items = [a, [b]]
    other = copy.copy(items)
    other[1].append(1)
    other.append(2)
    return items, other, copy.copy({"x": a}), copy.copy((a, 1))


@case(breaks=1)
def deep_copies(a, b):
    items = {"x": [a, 1], "y": (b, "text")}
    other = copy.deepcopy(items)
    other["x"][0].add_(1)
    other["x"].append(3)
    return items, other


@case(breaks=2)
def copies_of_objects(a, b):
    holder = Holder([a])
    shallow, deep = copy.copy(holder), copy.deepcopy(holder)
    shallow.value.append(b)
    deep.value.append(1)
    return len(holder.value), len(deep.value), shallow.value is holder.value, holder.value[1]


@case
def repr_and_str_of_values(a, b):
    return (
        repr([1, "a"]),
        str({"k": (1,)}),
        repr(torch.float32),
        str(torch.device("cpu")),
        f"{type(a).__name__}",
        a,
    )


@case(breaks=None)
def hashes(a, b):
    return (
        hash("x") == hash("x"),
        hash((1, 2.0)) == hash((1, 2)),
        {hash(1): a}[hash(True)],
        hash(a) == hash(a),
    )


@case
def length_of_everything(a, b):
    return len(a), len([1]), len("abc"), len({}), len(range(3)), len((1, 2)), a.shape[0] == len(a)


@case(breaks=None)
def object_and_dir(a, b):
    marker = object()
    return marker is marker, "double" in dir(Holder), isinstance(marker, object), a


@case(breaks=1)
def locals_are_read(a, b):
    c = a + b
    return sorted(locals()), c


@case
def globals_are_read(a, b):
    return "Holder" in globals(), globals()["Holder"](a).double(), b


@case(breaks=None)
def eval_of_a_constant(a, b):
    return eval("1 + 2"), a


@case
def print_to_a_string_is_no_output(a, b):
    text = " ".join(str(x) for x in (1, "two"))
    return text, a


@case
def slice_and_divmod_builtins(a, b):
    q, r = divmod(a.shape[1], 3)
    return a[slice(q)], q, r, abs(a), round(3.7), pow(a, 2)


@case
def isinstance_of_numbers_and_containers(a, b):
    def flatten(value):
        if isinstance(value, (list, tuple)):
            return [leaf for item in value for leaf in flatten(item)]
        return [value]

    return flatten([a, (1, [b, ()]), "x"])


@case
def type_with_three_arguments(a, b):
    Made = type("Made", (Holder,), {"factor": 3, "triple": lambda self: self.value * self.factor})
    made = Made(a)
    return made.triple(), made.double(), Made.__name__, isinstance(made, Holder)


@case
def sorted_is_stable_and_takes_keys(a, b):
    rows = [("b", 2), ("a", 2), ("c", 1)]
    return (
        sorted(rows, key=lambda r: r[1]),
        sorted(rows, key=lambda r: (-r[1], r[0])),
        sorted([True, False]),
        a,
    )


@case
def recursion_over_a_structure(a, b):
    def walk(value, depth=0):
        if isinstance(value, dict):
            return {k: walk(v, depth + 1) for k, v in value.items()}
        if isinstance(value, list):
            return [walk(v, depth + 1) for v in value]
        return value * depth if isinstance(value, torch.Tensor) else value

    return walk({"x": [a, {"y": b}], "n": 3})


@case
def extremes_of_tensors_are_chosen_in_the_graph(x):
    return (
        max(x.sum(), x.mean()) * 2,
        min([x.sum(), x.mean(), x.amax()]) + 1,
        max(x.sum(), x.numel() * x[0, 0]),
    )
