"""The standard library as configuration code and samplers use it."""

from __future__ import annotations

import abc
import array
import bisect
import cmath
import contextvars
import dataclasses
import decimal
import enum
import fractions
import hashlib
import heapq
import inspect
import io
import numbers
import pathlib
import random
import re
import statistics
import string
import struct
import textwrap
import types
import typing
import weakref
from collections import UserList
from types import MappingProxyType, MethodType, SimpleNamespace

from tests.frontend.corpus.registry import case

CURRENT = contextvars.ContextVar("current", default=2)


class Shape(enum.Enum):
    ROUND = ("r", 1)
    FLAT = ("f", 2)

    def __init__(self, letter, sides):
        self.letter, self.sides = letter, sides

    @classmethod
    def _missing_(cls, value):
        return cls.ROUND


class Animal(abc.ABC):
    @property
    @abc.abstractmethod
    def legs(self): ...


class Dog(Animal):
    legs = 4


@case
def heaps(a, b):
    heap = [5, 1, 4]
    heapq.heapify(heap)
    heapq.heappush(heap, 0)
    return (
        heapq.heappop(heap),
        heapq.nsmallest(2, heap),
        heapq.nlargest(1, heap),
        heapq.heappushpop(heap, 9),
        heap,
        a,
    )


@case
def bisection(a, b):
    edges = [1, 3, 5]
    bisect.insort(edges, 4)
    return bisect.bisect(edges, 3), bisect.bisect_left(edges, 3), edges, a


@case
def statistics_of_numbers(a, b):
    return statistics.mean([1, 2, 6]), statistics.median([3, 1, 2]), a


@case
def exact_numbers(a, b):
    half = fractions.Fraction(1, 2)
    return (
        half + fractions.Fraction(1, 3),
        half * 2 == 1,
        float(half),
        a * float(half),
    )


@case(breaks=1)
def a_function_that_replaces_matches(a, b):
    found = []

    def upper(match):
        found.append(match.start())
        return match.group().upper()

    return re.sub("a", upper, "banana"), re.compile("n").subn(upper, "banana", count=1), found, a


@case(breaks=None)
def decimal_numbers(a, b):
    return decimal.Decimal("0.1") + decimal.Decimal("0.2"), a * 2


@case
def complex_math(a, b):
    return cmath.sqrt(-1), cmath.phase(1j), abs(cmath.exp(1j)), a


@case
def name_spaces(a, b):
    space = SimpleNamespace(x=a, n=2)
    space.y = b
    del space.n
    return (
        space.x + space.y,
        hasattr(space, "n"),
        sorted(vars(space)),
        SimpleNamespace(p=1) == SimpleNamespace(p=1),
    )


@case
def read_only_views(a, b):
    table = {"x": a}
    view = MappingProxyType(table)
    table["y"] = b
    try:
        view["z"] = 1
    except TypeError:
        return view["y"], list(view), "x" in view, len(view)


@case
def methods_made_by_hand(a, b):
    class Box:
        n = 3

    def scaled(self, x):
        return x * self.n

    box = Box()
    box.scaled = MethodType(scaled, box)
    Box.other = scaled
    return box.scaled(a), box.other(b), isinstance(box.scaled, types.MethodType)


@case
def user_list(a, b):
    items = UserList([a])
    items.append(b)
    return items[0] + items[1], len(items), items.data


@case
def abstract_numbers(a, b):
    return (
        isinstance(1, numbers.Integral),
        isinstance(1.5, numbers.Real),
        isinstance(True, numbers.Number),
        isinstance("1", numbers.Number),
        a,
    )


@case
def abstract_properties(a, b):
    return Dog().legs * a, isinstance(Dog(), Animal), inspect.isabstract(Animal)


@case(breaks=1)
def enums_with_state(a, b):
    return a * Shape.FLAT.sides, Shape.ROUND.letter, Shape("nothing").name, Shape(("f", 2)) is Shape.FLAT


@case
def data_classes_made_by_call(a, b):
    Point = dataclasses.make_dataclass("Point", ["x", ("y", int, 3)])
    point = Point(a)
    return point.x * point.y, dataclasses.fields(Point)[1].default


@case
def introspection(a, b):
    def inner(x, y=1, *args, z, **kw):
        return x

    signature = inspect.signature(inner)
    return (
        list(signature.parameters),
        signature.parameters["y"].default,
        inspect.isfunction(inner),
        inspect.isclass(Dog),
        "z" in signature.parameters,
        a,
    )


@case
def types_at_run_time(a, b):
    return (
        typing.get_args(typing.Optional[int]),
        typing.get_type_hints(Shape.__init__) == {},
        types.NoneType is type(None),
        isinstance(len, types.BuiltinFunctionType),
        a,
    )


@case
def templates_and_text(a, b):
    return (
        string.Template("$x is $y").substitute(x=1, y="two"),
        textwrap.dedent("  a\n  b"),
        textwrap.shorten("a b c d", 5),
        a,
    )


@case(breaks=None)
def hashes_and_packing(a, b):
    return hashlib.md5(b"x").hexdigest(), struct.pack("<i", 3), array.array("i", [1, 2])[1], a


@case(breaks=None)
def text_streams(a, b):
    stream = io.StringIO()
    stream.write("x")
    print("y", file=stream)
    return stream.getvalue(), a


@case(breaks=None)
def paths(a, b):
    path = pathlib.PurePosixPath("a") / "b.txt"
    return path.suffix, str(path.parent), path.name, a


@case(breaks=None)
def context_variables(a, b):
    token = CURRENT.set(5)
    inside = CURRENT.get()
    CURRENT.reset(token)
    return a * CURRENT.get(), inside


@case(breaks=None)
def weak_references(a, b):
    class Box:
        pass

    box = Box()
    reference = weakref.ref(box)
    # A variable that is not read again may die at a break before it: so it is read at the end.
    return reference() is box, len(weakref.WeakKeyDictionary({box: 1})), a, box is not None


@case(breaks=None)
def chance_with_a_seed(a, b):
    chance = random.Random(3)
    order = list(range(4))
    chance.shuffle(order)
    return a * chance.random(), order, chance.sample([1, 2, 3], 2)


@case(breaks=None)
def chance_of_the_module(a, b):
    random.seed(5)
    return a * random.random(), random.choice("abc"), random.sample(range(10), 3)
