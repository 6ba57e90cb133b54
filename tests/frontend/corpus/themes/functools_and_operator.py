"""`functools` and `operator`."""

from __future__ import annotations

import functools
import operator
from functools import partial, reduce, wraps
from operator import attrgetter, itemgetter, methodcaller

import torch

from tests.frontend.corpus.registry import case


def scaled(x, scale=1.0, *, bias=0.0):
    return x * scale + bias


def doubled(function):
    @wraps(function)
    def wrapper(*args, **kwargs):
        return 2 * function(*args, **kwargs)

    return wrapper


def repeated(times):
    def decorate(function):
        @wraps(function)
        def wrapper(x):
            for _ in range(times):
                x = function(x)
            return x

        return wrapper

    return decorate


@doubled
def plus_one(x):
    return x + 1


@repeated(times=3)
def half(x):
    return x / 2


@functools.lru_cache(maxsize=None)
def table_of(n):
    return tuple(range(n))


@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@functools.singledispatch
def described(value):
    return "something"


@described.register
def _(value: int):
    return "int"


@described.register(list)
def _(value):
    return "list of " + described(value[0])


@described.register(torch.Tensor)
def _(value):
    return "tensor"


class Lazy:
    def __init__(self, x):
        self.x = x
        self.computed = 0

    @functools.cached_property
    def squared(self):
        self.computed += 1
        return self.x * self.x


@functools.total_ordering
class Version:
    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return self.number == other.number

    def __lt__(self, other):
        return self.number < other.number


class Methods:
    def __init__(self, factor):
        self.factor = factor

    def scale(self, x, extra=0):
        return x * self.factor + extra

    twice = functools.partialmethod(scale, extra=2)


HALVED = partial(scaled, scale=0.5)


@case
def partial_application(a, b):
    double = partial(scaled, scale=2.0)
    return double(a), double(b, bias=1.0), double(a, scale=3.0)


@case
def nested_partials(a, b):
    inner = partial(scaled, a)
    outer = partial(inner, 2.0, bias=b)
    return outer(), outer(bias=0.0), outer.func is scaled, outer.args[1:], sorted(outer.keywords)


@case
def a_global_partial(a, b):
    return HALVED(a) + HALVED(b, bias=1)


@case(make=lambda size: (torch.randn(size, 4), partial(scaled, scale=4.0)))
def a_partial_as_argument(a, function):
    return function(a), function.keywords["scale"]


@case
def reduce_of_tensors(a, b):
    return (
        reduce(torch.add, [a, b, a]),
        reduce(lambda x, y: x * y, [1, 2, 3], 10),
        reduce(operator.add, [[1], [2]]),
    )


@case
def decorated_functions(a, b):
    return plus_one(a), half(b), plus_one.__name__


@case
def a_decorator_applied_inside(a, b):
    @doubled
    def inner(x, y):
        return x - y

    return inner(a, b), inner.__name__


@case(breaks=None)
def cached_functions(a, b):
    return a * sum(table_of(4)), fibonacci(10), table_of(3)


@case(breaks=4)
def single_dispatch(a, b):
    return described(3), described([1]), described(a), described("x"), a + b


@case
def cached_property(a, b):
    lazy = Lazy(a)
    return lazy.squared + lazy.squared, lazy.computed, b


@case
def total_ordering(a, b):
    return Version(1) >= Version(0), max(Version(1), Version(3)).number, Version(2) > Version(2), a


@case
def partial_methods(a, b):
    methods = Methods(3)
    return methods.twice(a), methods.scale(b)


@case(breaks=1)
def compare_by_a_function(a, b):
    order = functools.cmp_to_key(lambda x, y: y - x)
    return sorted([1, 3, 2], key=order), a


@case
def arithmetic_operators(a, b):
    return (
        operator.add(a, b),
        operator.sub(a, b),
        operator.mul(a, 2),
        operator.truediv(a, 2),
        operator.neg(a),
        operator.pow(a, 2),
        operator.matmul(a, b.t()),
    )


@case
def logical_and_comparing_operators(a, b):
    return (
        operator.lt(a, b),
        operator.eq(1, 1),
        operator.not_(0),
        operator.truth([]),
        operator.is_(a, a),
        operator.is_not(a, b),
        operator.and_(6, 3),
        operator.xor(a > 0, b > 0),
    )


@case
def in_place_operator_functions(a, b):
    c = a.clone()
    c = operator.iadd(c, b)
    operator.imul(c, 2)
    items = [1]
    operator.iadd(items, [2])
    return c, items


@case
def container_operators(a, b):
    items = [a, b, 3]
    operator.setitem(items, 2, 4)
    operator.delitem(items, 0)
    return (
        operator.getitem(items, 0),
        operator.contains([1], 1),
        operator.concat([1], [2]),
        operator.indexOf([5, 6], 6),
        operator.countOf([1, 1], 1),
        operator.length_hint([1]),
        items,
    )


@case
def getters_and_callers(a, b):
    pick = itemgetter(1)
    pick_two = itemgetter("x", "y")
    shape = attrgetter("shape")
    total = methodcaller("sum", dim=0)
    return (
        pick([a, b]),
        pick_two({"x": a, "y": 1}),
        shape(a),
        total(b),
        attrgetter("dtype.is_floating_point")(a),
        sorted([(1, 2), (0, 3)], key=itemgetter(0)),
    )


@case
def index_operator(a, b):
    return (
        operator.index(True),
        a[operator.index(1)],
        operator.floordiv(7, 2),
        operator.mod(7, 4),
        operator.invert(5),
        operator.pos(-1),
        operator.lshift(1, 3),
    )


@case
def operators_from_a_table(a, b):
    table = {"+": operator.add, "-": operator.sub, ">": operator.gt}
    return [table[symbol](a, b) for symbol in "+->"]


@case
def attributes_of_a_wrapped_function(a, b):
    def inner(x):
        """Doc."""
        return x

    inner.tag = "t"
    wrapped = wraps(inner)(lambda x: inner(x) + 1)
    return wrapped(a), wrapped.__name__, wrapped.__doc__, wrapped.tag, wrapped.__wrapped__ is inner
