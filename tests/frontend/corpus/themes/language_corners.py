"""Corners of the language that code of models does reach."""

from __future__ import annotations

import torch

from tests.frontend.corpus.registry import case

MEMO = {}
DEPTH = 3
NOTHING = object()


def with_sentinel(x, scale=NOTHING):
    return x if scale is NOTHING else x * scale


def passed_on(*args, **kwargs):
    return received(*args, **kwargs)


def received(x, y=1, *rest, key="k", **named):
    return x, y, rest, key, named


def global_in_an_inner_function():
    def inner():
        return DEPTH

    return inner()


@case
def star_in_a_subscript(a, b):
    where = (0, slice(1, 3))
    return a[*where], a[0, *[1]], a[(..., *where[:1])]


@case
def star_targets(a, b):
    first, *_ = [a, 1, 2]
    *start, last = "abc"
    for head, *tail in [(1, 2, 3), (4,)]:
        pass
    [x, [y, *z]] = [1, [2, 3, 4]]
    return first, start, last, head, tail, x, y, z


@case
def targets_of_all_kinds(a, b):
    class Box:
        pass

    box, items, table = Box(), [0, 0], {}
    box.x, items[0], table["k"], items[1:] = a, 1, b, [5, 6]
    for box.i, items[1] in enumerate("pq"):
        pass
    with torch.no_grad() as table["context"]:
        pass
    return box.x, items, table, box.i


@case
def order_of_evaluation(a, b):
    log = []

    def note(value):
        log.append(value)
        return value

    {note("k1"): note("v1"), note("k2"): note("v2")}
    [note(1), note(2)][note(0)]
    note(3) + note(4) * note(5)
    dict(x=note(6), **{"y": note(7)})
    note(8) if note(9) else note(10)
    note(1) < note(0) < note(99)
    return log, a


@case
def short_circuits(a, b):
    log = []

    def note(value):
        log.append(value)
        return value

    result = note(0) or note(2) and note(0) or note("end")
    return result, log, a


@case
def sentinel_default(a, b):
    return with_sentinel(a), with_sentinel(a, 2), with_sentinel(b, 0.5)


@case
def arguments_passed_on(a, b):
    return passed_on(a), passed_on(a, b, 3, key="z", other=4), passed_on(x=a, y=2)


@case
def memo_in_a_local_dict(a, b):
    memo = {}

    def ways(n):
        if n in memo:
            return memo[n]
        memo[n] = 1 if n < 2 else ways(n - 1) + ways(n - 2)
        return memo[n]

    return a * ways(12), len(memo)


@case(state=("MEMO",), hits=False)
def memo_in_a_global_dict(a, b):
    key = tuple(a.shape)
    if key not in MEMO:
        MEMO[key] = torch.ones(key)
    return a + MEMO[key]


@case
def global_read_through_an_inner_function(a, b):
    return a * global_in_an_inner_function()


@case
def nonlocal_through_two_levels(a, b):
    count = 0

    def outer():
        def inner():
            nonlocal count
            count += 1
            return count

        return inner() + inner()

    return outer(), count, a


@case
def cell_that_is_deleted_and_made_again(a, b):
    value = 1

    def read():
        return value

    first = read()
    del value
    try:
        read()
    except NameError:
        pass
    value = 2
    return first, read(), a


@case
def shadowed_builtins(a, b):
    list = [1, 2]
    sum = lambda values: "shadow"
    return sum(list), len(list), a


@case
def conditional_definitions(a, b):
    if a.dim() == 2:

        def pick(x):
            return x + 1

    else:

        def pick(x):
            return x - 1

    return pick(a)


@case
def default_arguments_are_evaluated_once(a, b):
    n = 1

    def inner(x, k=n, seen=[]):
        seen.append(k)
        return x * k, len(seen)

    n = 5
    return inner(a), inner(b)


@case
def keyword_only_defaults_from_a_loop(a, b):
    functions = []
    for i in range(3):

        def inner(x, *, i=i):
            return x * i

        functions.append(inner)
    return [f(a) for f in functions]


@case
def functions_in_a_dict_of_closures(a, b):
    def make(op):
        return {"+": lambda x, y: x + y, "*": lambda x, y: x * y}[op]

    return make("+")(a, b), make("*")(a, b)


@case
def currying(a, b):
    add = lambda x: lambda y: lambda z: x + y * z
    return add(a)(b)(2)


@case
def composition(a, b):
    def compose(*functions):
        def composed(x):
            for function in reversed(functions):
                x = function(x)
            return x

        return composed

    return compose(torch.relu, torch.neg, lambda x: x * 2)(a)


@case
def fixed_point_by_recursion(a, b):
    fix = lambda f: (lambda x: f(lambda v: x(x)(v)))(lambda x: f(lambda v: x(x)(v)))
    factorial = fix(lambda again: lambda n: 1 if n == 0 else n * again(n - 1))
    return factorial(5), a


@case
def generator_in_a_with_and_try(a, b):
    log = []

    def generate():
        try:
            with torch.no_grad():
                yield a + 1
                log.append("second")
                yield b + 1
        finally:
            log.append("done")

    first, second = generate()
    return first, second, log


@case
def nested_generators_share_state(a, b):
    state = {"n": 0}

    def inner(k):
        for _ in range(k):
            state["n"] += 1
            yield state["n"]

    def outer():
        for k in (1, 2):
            yield list(inner(k))

    return list(outer()), state, a


@case
def pairs_from_one_iterator(a, b):
    values = iter([1, 2, 3, 4, 5])
    return list(zip(values, values)), list(values), a


@case
def pairs_by_repeated_iterator(a, b):
    return list(zip(*[iter([a, b, a, b])] * 2))


@case
def unequal_maps(a, b):
    return list(map(lambda x, n: x * n, [a, b], [1, 2, 3])), list(zip(range(3), "ab", [None] * 9))


@case
def sorting_by_many_things(a, b):
    rows = [{"n": 2, "s": "b"}, {"n": 1, "s": "c"}, {"n": 2, "s": "a"}]
    counts = {"x": 3, "y": 1}
    return (
        sorted(rows, key=lambda r: (-r["n"], r["s"])),
        sorted(counts.items(), key=lambda p: p[1]),
        max(counts, key=counts.get),
        min(rows, key=lambda r: r["n"]),
        a,
    )


@case
def dict_built_in_steps(a, b):
    groups = {}
    for name, value in (("x", 1), ("y", 2), ("x", 3)):
        groups.setdefault(name, []).append(value)
    inverted = {v: k for k, vs in groups.items() for v in vs}
    merged = {**groups, "z": [a]}
    first_key, *other_keys = merged
    return groups, inverted, merged, first_key, other_keys


@case
def string_building(a, b):
    parts = []
    for i, n in enumerate(a.shape):
        parts.append(f"{i}:{n}{'' if i else ';'}")
    return "|".join(parts), f"{'nested ' + f'{len(parts)}'}", f"{parts!r:>20}", f"{len(parts):0{3}d}", a


@case
def boolean_algebra_of_flags(a, b):
    flags = {"x": True, "y": False}
    return (
        any(flags.values()),
        all(flags.values()),
        sum(flags.values()),
        flags["x"] ^ flags["y"],
        not flags["y"],
        flags["x"] is True,
        a,
    )


@case
def comparison_of_containers(a, b):
    return (
        [1, [2]] == [1, [2]],
        (1, 2) < (1, 2, 0),
        {"a": [1]} == {"a": [1]},
        [1, 2] != (1, 2),
        "a" < "b" <= "b",
        {1} < {1, 2},
        a,
    )


@case
def numbers_of_every_notation(a, b):
    return 1_000, 0xFF, 0o17, 0b11, 1e-3, 1.5e2, 3j, -0.0, 10**-2, a


@case
def while_with_several_exits(a, b):
    n, log = 10, []
    while n:
        n -= 1
        if n == 8:
            continue
        try:
            if n == 6:
                break
            log.append(n)
        finally:
            log.append("f")
    else:
        log.append("else")
    return log, n, a


@case
def loop_else_with_return(a, b):
    def find(values, wanted):
        for i, value in enumerate(values):
            if value == wanted:
                return i
        else:
            return -1

    return find("abc", "c"), find("abc", "z"), a


@case
def try_return_finally_order(a, b):
    log = []

    def inner(n):
        try:
            if n == 0:
                return log.append("return") or "r"
            if n == 1:
                raise ValueError
            return "end"
        except ValueError:
            return log.append("except") or "e"
        else:
            log.append("never")
        finally:
            log.append("finally")

    return [inner(n) for n in range(3)], log, a


@case
def exceptions_through_frames_with_state(a, b):
    log = []

    def deep(n):
        log.append(n)
        try:
            if n == 0:
                raise KeyError("bottom")
            deep(n - 1)
        finally:
            log.append(-n)

    try:
        deep(2)
    except KeyError as error:
        log.append(error.args[0])
    return log, a


@case
def exception_variables_and_notes(a, b):
    try:
        try:
            raise ValueError("one")
        except ValueError as error:
            error.add_note("a note")
            raise
    except ValueError as again:
        return again.__notes__, str(again), again.__traceback__ is not None, a


@case
def exception_groups(a, b):
    log = []
    try:
        raise ExceptionGroup("many", [ValueError(1), KeyError(2), ValueError(3)])
    except* ValueError as group:
        log.append(len(group.exceptions))
    except* KeyError as group:
        log.append("key")
    return log, a


@case
def assert_with_side_effects(a, b):
    log = []
    assert log.append("checked") is None
    assert (n := a.dim()) == 2, "two"
    return log, n, a


@case
def del_of_many_things(a, b):
    class Box:
        pass

    box, items, table, name = Box(), [0, 1, 2, 3], {"x": 1, "y": 2}, "n"
    box.x = box.y = 1
    del items[::2], table["x"], box.x, name
    return items, table, hasattr(box, "x"), hasattr(box, "y"), a


@case
def walrus_everywhere(a, b):
    if any((last := n) > 1 for n in range(5)):
        pass
    values = [y := 1, y**2, (y := y + 5)]
    table = {(k := "key"): (v := 3)}
    return last, values, y, table, k, v, f"{(z := 4)}", z, a


@case
def lambda_with_conditional_and_unpacking(a, b):
    f = lambda *xs, **kw: (xs[0] if xs else None, *kw.items())
    return f(), f(a, 1), f(x=1, y=b)


@case
def very_long_chain(a, b):
    for _ in range(60):
        a = a + 1
        a = a * 0.99 if a.dim() else a
    return a


@case
def many_arguments_and_locals(a, b):
    def many(p0, p1, p2, p3, p4=4, p5=5, *, k0=0, k1=1, k2=2, **rest):
        q0, q1 = p0 + p1, p2 * p3
        return q0 + q1 + p4 + p5 + k0 + k1 + k2 + sum(rest.values())

    return many(a, b, 1, 2, k2=3, z=10, y=20)


@case
def deep_nesting(a, b):
    result = []
    for i in range(2):
        if i:
            try:
                with torch.no_grad():
                    for j in range(2):
                        while True:
                            if j == 1:
                                result.append([k for k in range(j + 1) if k or j])
                            break
            finally:
                result.append(i)
    return result, a


@case
def type_annotations_inside(a, b):
    from typing import Dict, List, Optional, Tuple

    x: Optional[int] = None
    y: List[Tuple[int, ...]] = [(1,)]
    z: Dict[str, "torch.Tensor"] = {"a": a}

    def typed(value: "int" = 3, *args: int, **kw: Optional[str]) -> Tuple[int, int]:
        return value, len(args)

    return x, y, z, typed(), typed.__annotations__["value"]


@case
def docstring_and_name_of_itself(a, b):
    """The doc."""
    return docstring_and_name_of_itself.__name__, docstring_and_name_of_itself.__doc__, a


@case(breaks=None)
def bytes_and_memory(a, b):
    data = bytearray(b"abc")
    data[0] = 120
    data += b"d"
    data.extend([101])
    return bytes(data), data.find(b"d"), len(memoryview(bytes(data))), b"%d" % 3, a
