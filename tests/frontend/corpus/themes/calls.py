"""Calls: every way of passing arguments, closures, defaults and recursion."""

from __future__ import annotations

import torch

from tests.frontend.corpus.registry import case

COUNTER = 0
TABLE = {"scale": 2.0}
NAMES = ["first"]
WEIGHT = torch.full((4,), 0.5)


def with_defaults(x, scale=2, *, bias=1.0):
    return x * scale + bias


def with_star_args(first, *rest, **named):
    total = first
    for value in rest:
        total = total + value
    for name in sorted(named):
        total = total * named[name]
    return total, len(rest), list(named)


def only_positional(x, y, /, z=1, *, k=2):
    return x + y * z - k


def with_mutable_default(x, seen=[]):
    seen.append(x.shape[0])
    return x + len(seen)


@case
def keywords_and_defaults(a, b):
    return (
        with_defaults(a),
        with_defaults(a, 3),
        with_defaults(x=b, bias=0),
        with_defaults(a, bias=b, scale=-1),
    )


@case
def star_args(a, b):
    return (
        with_star_args(a),
        with_star_args(a, b, 1),
        with_star_args(*[a, b], **{"k": 2}),
        with_star_args(a, *(1,), *[2], j=1, **{"k": 3}),
    )


@case
def positional_only_and_keyword_only(a, b):
    return only_positional(a, b), only_positional(a, b, 3), only_positional(a, b, z=2, k=0)


@case
def wrong_arguments_are_errors(a, b):
    try:
        with_defaults()
    except TypeError as error:
        first = str(error)
    try:
        with_defaults(a, nothing=1)
    except TypeError as error:
        return first, str(error), a + b


def mutable_default_function():
    def with_seen(x, seen=[]):
        seen.append(x.shape[0])
        return x + len(seen)

    return (with_seen,)


@case(keep=mutable_default_function, hits=False, breaks=0)
def mutable_default(function, a):
    return function(a), function(a)


@case(
    make=lambda size: (torch.randn(size, 4),),
    keywords=lambda size: {"scale": 3.0, "other": torch.randn(size, 4)},
)
def keywords_of_the_traced_function(a, scale=1.0, **rest):
    return a * scale + rest["other"], sorted(rest)


@case(make=lambda size: tuple(torch.randn(size, 4) for _ in range(3)))
def star_args_of_the_traced_function(*values):
    return sum(values), len(values), values[-1]


@case
def defaults_of_the_traced_function(a, b=2, *, c="x"):
    return a * b, c


@case
def inner_function(a, b):
    def inner(x):
        return x * 2 + b

    return inner(a) + inner(b)


@case
def closure_with_a_counter(a, b):
    count = 0

    def step(x):
        nonlocal count
        count += 1
        return x + count

    return step(step(a)), count, step(b), count


@case
def closures_share_a_variable(a, b):
    state = []
    total = 0

    def push(x):
        nonlocal total
        total = total + x
        state.append(x)

    def read():
        return total, len(state)

    push(a)
    push(b)
    return read()


@case
def a_closure_is_returned_and_called(a, b):
    def make(scale):
        def inner(x):
            return x * scale

        return inner

    return make(2)(a), make(b)(a)


@case
def lambdas_in_a_loop_share_the_variable(a, b):
    late = [lambda x: x * n for n in range(3)]
    early = [lambda x, n=n: x * n for n in range(3)]
    return [f(a) for f in late], [f(b) for f in early]


@case
def a_lambda_with_everything(a, b):
    f = lambda x, *args, y=2, **kw: (x * y, args, kw)
    return f(a), f(a, 1, y=3, z=4)


@case
def recursive_function(a, b):
    def power(x, n):
        return torch.ones_like(x) if n == 0 else x * power(x, n - 1)

    return power(a, 3)


@case
def mutual_recursion(a, b):
    def even(n, x):
        return x if n == 0 else odd(n - 1, x + 1)

    def odd(n, x):
        return even(n - 1, x * 2)

    return even(4, a)


def closure_case(scale, offset):
    @case
    def reads_variables_of_an_outer_function(a, b):
        return a * scale + b + offset

    return reads_variables_of_an_outer_function


closure_case(2.5, WEIGHT)


def counting_case():
    count = 0

    @case(breaks=None, hits=False)
    def changes_a_variable_of_an_outer_function(a, b):
        nonlocal count
        count = (count + 1) % 3
        return a + b

    return changes_a_variable_of_an_outer_function


counting_case()


@case(state=("COUNTER",), hits=False)
def a_global_number_is_changed(a, b):
    global COUNTER
    COUNTER += 1
    return a + COUNTER


@case(state=("TABLE",), hits=False)
def a_global_dict_is_changed(a, b):
    TABLE["last"] = a * TABLE["scale"]
    return TABLE["last"] + b


@case(state=("NAMES",), hits=False)
def a_global_list_is_changed(a, b):
    NAMES.append("next")
    return a * len(NAMES)


@case
def a_global_tensor_is_read(a, b):
    return a * WEIGHT + b


@case(state=("FRESH",))
def a_global_is_made_and_deleted(a, b):
    global FRESH
    FRESH = a + 1
    c = FRESH * 2
    del FRESH
    return c


@case
def functions_as_arguments(a, b):
    def apply(function, *args, **kwargs):
        return function(*args, **kwargs)

    return (
        apply(torch.add, a, b),
        apply(with_defaults, a, scale=3),
        apply(lambda: b),
        apply(torch.sum, a, dim=0),
    )


@case(make=lambda size: (torch.relu, torch.randn(size, 4)))
def function_argument_of_the_traced_function(function, a):
    return function(a) + 1


@case
def default_that_depends_on_an_outer_value(a, b):
    def inner(x, y=a):
        return x - y

    return inner(b), inner(b, b), inner.__defaults__[0] is a


@case
def function_attributes(a, b):
    def inner(x):
        inner.calls = getattr(inner, "calls", 0) + 1
        return x * inner.calls

    return inner(a) + inner(b), inner.calls, inner.__name__


@case
def unpacking_into_calls(a, b):
    args = (a, b)
    options = {"dim": 0, "keepdim": True}
    return torch.add(*args), a.sum(**options), torch.stack([*args, *args]), dict(**options, extra=1)


@case
def immediately_called(a, b):
    return (lambda x: x + 1)(a), (lambda *xs: sum(xs))(a, b)


@case
def deletion_of_variables(a, b):
    c = a + b
    del a
    try:
        return a
    except UnboundLocalError as error:
        return c, "a" in str(error)


@case
def many_return_points(a, b):
    def pick(n):
        if n == 0:
            return a
        if n == 1:
            return b
        return a + b

    return [pick(i) for i in range(3)]


@case
def deep_calls(a, b):
    def one(x):
        return two(x) + 1

    def two(x):
        return three(x) * 2

    def three(x):
        return x - b

    return one(a)


@case
def annotations_and_docstrings(a: torch.Tensor, b: "torch.Tensor") -> torch.Tensor:
    """Adds."""
    c: int = 3
    d: "list[int]"
    return a * c + b


@case
def keyword_arguments_of_torch_functions(a, b):
    return (
        torch.sum(input=a, dim=1),
        torch.cat(tensors=[a, b], dim=0),
        a.mean(dim=0, keepdim=True),
        torch.full(size=(2,), fill_value=1.0),
    )


@case
def an_inner_generator_with_closure(a, b):
    def scaled(n):
        return (a * i + b for i in range(n))

    return list(scaled(3))


@case
def import_inside(a, b):
    import math

    from torch.nn.functional import softmax

    return softmax(a, -1) * math.pi
