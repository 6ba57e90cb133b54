"""Protocols of Python objects, to the letter: who is asked, how often, what is said when it is wrong."""

from __future__ import annotations

import collections
import copy
import functools
import heapq
import itertools
import operator
import types

import torch
from torch import nn

from tests.frontend.corpus.registry import case

LOG = []


class Pair:
    """An iterable object, which most functions take as the object that it is."""

    def __init__(self, n=2):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


class Squares:
    """Never ends, and is iterated over by index."""

    def __getitem__(self, index):
        return index * index


class Table:
    """No dict, but with `keys`."""

    def __init__(self, value):
        self.value = value

    def keys(self):
        return ["a", "b"]

    def __getitem__(self, key):
        return self.value if key == "a" else 2


class TenTimes(list):
    def __iter__(self):
        for item in super().__iter__():
            yield item * 10


class Long(list):
    def __len__(self):
        return 99

    def __getitem__(self, index):
        return "got"


class Doubled(dict):
    def __getitem__(self, key):
        return super().__getitem__(key) * 2


class Strange(dict):
    def __iter__(self):
        return iter(["z"])

    def keys(self):
        return ["a"]

    def __getitem__(self, key):
        return key, "sub"

    def __len__(self):
        return 42


class Letters(tuple):
    def __iter__(self):
        return iter("ab")

    def __len__(self):
        return 5


class Reflected:
    def __radd__(self, other):
        return "radd", other

    def __rmul__(self, other):
        return "rmul", other

    def __index__(self):
        return 2


class Undecided:
    def __sub__(self, other):
        LOG.append("sub")
        return NotImplemented

    def __rsub__(self, other):
        LOG.append("rsub")
        return NotImplemented

    def __lt__(self, other):
        LOG.append("lt")
        return NotImplemented

    def __eq__(self, other):
        LOG.append("eq")
        return NotImplemented

    __hash__ = object.__hash__


class Wrong:
    def __repr__(self):
        return 5

    def __str__(self):
        return None

    def __len__(self):
        return -1

    def __bool__(self):
        return 1

    def __iter__(self):
        return 3

    def __format__(self, spec):
        return 1


class Foreign:
    def __repr__(self):
        return "é"


class Base:
    def __add__(self, other):
        return "Base.add"

    def __radd__(self, other):
        return "Base.radd"

    def __divmod__(self, other):
        return "Base.divmod"

    def __rdivmod__(self, other):
        return "Base.rdivmod"


class Other(Base):
    def __radd__(self, other):
        return "Other.radd"

    def __rdivmod__(self, other):
        return "Other.rdivmod"


class Same(Base):
    pass


class NoContainer:
    __contains__ = None

    def __iter__(self):
        return iter([1, 2])


class NotIterable:
    __iter__ = None

    def __getitem__(self, index):
        return index


class Removing:
    def __get__(self, owner, kind):
        return "got"

    def __set__(self, owner, value):
        owner.__dict__["value"] = value

    def __delete__(self, owner):
        owner.__dict__["deleted"] = True


class WithDescriptor:
    attribute = Removing()


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a=1):
        self.a = a


class ShowsSuper:
    def seen(self):
        up = super()
        return up.__class__, up.__thisclass__, up.__self__ is self, up.__self_class__


class Equal:
    def __init__(self, v):
        self.v = v

    def __eq__(self, other):
        return isinstance(other, Equal) and self.v == other.v

    def __repr__(self):
        return f"Equal({self.v})"


class ReturnsFromInit:
    def __init__(self):
        return 5


def told(*functions):
    """What each returns, or how it fails."""
    found = []
    for function in functions:
        try:
            found.append(function())
        except Exception as error:
            found.append((type(error), str(error)))
    return found


@case
def iterable_objects_stay_objects(x):
    pair = Pair()
    deep = {"a": pair}
    heap = []
    heapq.heappush(heap, pair)
    bound = types.MethodType(lambda self: self.n, pair)
    first = functools.partial(lambda a, b: (a is pair, b), pair)(3)
    reduced = functools.reduce(lambda a, b: (a is pair, b), [1], pair)
    again = [each is pair for each in itertools.repeat(pair, 2)]
    return (
        x * pair.n,
        operator.is_(pair, pair),
        {}.pop("q", pair) is pair,
        bound(),
        heap[0] is pair,
        (first, reduced, again, deep["a"] is pair, [pair].index(pair), [1, pair].count(pair)),
    )


@case(keep=lambda: (nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.ModuleList([nn.Linear(4, 4)])))
def modules_that_are_iterable_are_passed_on(sequence, layers, x):
    def run(inner, y):
        for layer in inner:
            y = layer(y)
        return len(inner), y

    call = functools.partial(lambda module, y: module(y), sequence)
    return call(x), functools.partial(run, layers)(x), operator.is_(layers, layers)


@case(breaks=10)
def an_endless_sequence_is_asked_as_far_as_needed(x):
    taken = []
    for value in Squares():
        if value > 10:
            break
        taken.append(value)
    iterator = iter(Squares())
    next(iterator)
    pairs = [a + b for a, b in zip(Squares(), range(3), strict=False)]
    return x * sum(taken), pairs, 9 in Squares(), list(itertools.islice(iterator, 3)), type(iterator)


@case
def objects_with_keys_are_mappings(x):
    def named(**keywords):
        return keywords

    updated = {}
    updated.update(Table(x))
    ordered = collections.OrderedDict(Table(x))
    return named(**Table(x)), {**Table(x)}, dict(Table(x)), updated, ordered, dict(Table(x), c=3)


@case
def a_list_that_iterates_differently(x):
    items = TenTimes([1, 2])
    return (
        [x * item for item in items],
        [*items],
        tuple(items),
        len(items),
        items[0],
        sum(items),
        items + [3],
        items,
    )


@case(make=lambda size: (torch.randn(size, 4), TenTimes([1, 2]), Long([1, 2]), Letters((torch.ones(2), 2))))
def containers_of_the_user_as_arguments(x, items, long, letters):
    items.append(3)
    long.append(x)
    return (
        [x * item for item in items],
        len(items),
        len(long),
        long[0],
        [*letters],
        len(letters),
        letters[0] + 1,
    )


@case(make=lambda size: (torch.randn(size, 4), Doubled(a=torch.ones(size, 4), b=2), Strange(a=1, b=2)))
def dicts_of_the_user_as_arguments(x, doubled, strange):
    strange["c"] = 3
    return (
        doubled["a"] + x,
        doubled.get("b"),
        {**doubled},
        list(strange),
        {**strange},
        len(strange),
        strange["q"],
    )


@case(
    make=lambda size: (torch.randn(size, 4), types.MappingProxyType({"a": 1, "b": torch.ones(size, 4)})),
    breaks=13,
)
def read_only_views_as_arguments(x, view):
    return (
        x + view["b"],
        list(view),
        view.get("a"),
        len(view),
        dict(view),
        {**view},
        [v for v in view.values()],
    )


@case
def sequences_ask_the_other_side_first(x):
    other = Reflected()
    return [1] + other, (1,) + other, [1] * other, "a" * other, "a" + other, x + 1


@case(state=("LOG",), hits=False)
def who_does_not_know_is_asked_once(x):
    a, b = Undecided(), Undecided()
    said = told(lambda: a - 1, lambda: 1 - a, lambda: a - b, lambda: a < 1, lambda: a < b, lambda: a > 5)
    said += told(lambda: a == 2, lambda: a != 2, lambda: a == a, lambda: a @ 2, lambda: a**2)
    return x + 1, said, list(LOG)


@case
def what_special_methods_may_not_return(x):
    wrong = Wrong()
    asked = (repr, str, len, bool, iter, list, format)
    said = told(*(functools.partial(function, wrong) for function in asked))
    return x + 1, said, told(lambda: not wrong, lambda: f"{wrong!r}", lambda: f"{wrong}", ReturnsFromInit)


@case(breaks=1)
def ascii_of_objects(x):
    return f"{Foreign()!a}", ascii(Foreign()), f"{[Foreign()]!a}", repr(Foreign()), x + 1


@case(breaks=2)
def a_subclass_comes_first_where_it_differs(x):
    found = (
        Base() + Other(),
        Base() + Same(),
        divmod(Base(), Other()),
        divmod(Base(), Same()),
        Other() + Base(),
    )
    return x + 1, found


@case
def methods_that_are_none(x):
    said = told(lambda: 1 in NoContainer(), lambda: iter(NotIterable()), lambda: list(NotIterable()))
    return x + 1, said, told(lambda: 1 in NotIterable(), lambda: hash(Equal(1)))


@case(make=lambda size: (torch.randn(size, 4), WithDescriptor()), breaks=1)
def deletion_through_a_descriptor(x, thing):
    thing.attribute = x
    del thing.attribute
    return thing.attribute, thing.value + 1, thing.deleted


@case(make=lambda size: (torch.randn(size, 4), Slotted()))
def slots_have_no_dict(x, thing):
    return (
        x + thing.a,
        told(lambda: thing.__dict__, lambda: vars(Slotted()), lambda: thing.b),
        hasattr(thing, "__dict__"),
    )


@case
def a_super_object(x):
    return ShowsSuper().seen(), x + 1


@case
def the_type_of_a_generator(x):
    made = (item for item in [x])
    return type(made), made.__class__, type(made) is types.GeneratorType, next(made) + 1


@case(breaks=4)
def searches_by_equality(x):
    items = [Equal(1), Equal(2), Equal(1)]
    said = told(
        lambda: items.index(Equal(3)), lambda: tuple(items).index(Equal(3)), lambda: items.remove(Equal(3))
    )
    return x + 1, said, items.index(Equal(1), 1), items.index(Equal(2)), items.count(Equal(1))


@case(breaks=1)
def builtins_called_wrongly(x):
    said = told(
        lambda: len(),
        lambda: len(1, 2),
        lambda: getattr(x),
        lambda: isinstance(1),
        lambda: sorted([1], 2),
        lambda: [1].sort(3),
        lambda: {}.get(),
        lambda: [1].count(),
        lambda: max(),
        lambda: any(),
        lambda: next(),
        lambda: hash(),
        lambda: divmod(1),
        lambda: operator.add(1),
        lambda: dict.get(1, 2),
        lambda: bool(1, 2),
        lambda: max(1, 2, foo=3),
        lambda: max(1, 2, default=3),
        lambda: min(5),
        lambda: hex(),
        lambda: vars(1, 2),
        lambda: operator.itemgetter(1)(),
        lambda: {}.__getitem__(),
        lambda: {}.__len__(1),
        lambda: getattr(x, 5),
    )
    return x + 1, said


@case(make=lambda size: (torch.randn(size, 4), WithDescriptor(), {"a": torch.ones(size, 4)}))
def attributes_are_deleted_after_all_were_seen(x, thing, table):
    thing.first = x
    vars(thing)["second"] = 2
    del thing.first
    view = types.MappingProxyType(table)
    table["b"] = x + 1
    return hasattr(thing, "first"), sorted(vars(thing)), view["b"] + 1, view


class Shown:
    def __init__(self):
        self.v = 1


@case(make=lambda size: (torch.randn(size, 4), Shown()))
def an_old_attribute_is_gone_from_a_dict_that_was_seen(x, thing):
    del thing.v
    vars(thing)["w"] = x
    return hasattr(thing, "v"), sorted(vars(thing)), hasattr(thing, "v"), thing.w + 1


def documented(x):
    """Old."""
    return x + 1


@case(breaks=1)
def the_text_of_a_function_is_replaced(x):
    documented.__doc__ = "new"
    return documented(x), documented.__doc__


class Config(dict):
    """Keys as attributes."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


@case(make=lambda size: (torch.randn(size, 4), Config(rate=0.5, sub=Config(k=2), name="n")))
def keys_as_attributes(x, config):
    config.new = x
    config.sub.k += 1
    del config.name
    made = Config(a=1)
    made.b = x + 1
    return x * config.rate + config.sub.k, config["new"] is x, list(config), made, made.b - 1


class Assembled:
    """Its special methods are no plain functions."""

    def base(self, a, b=2):
        self.a, self.b = a, b

    __init__ = functools.partialmethod(base, 1)
    __call__ = staticmethod(lambda x: x + 1)
    __getitem__ = functools.partialmethod(lambda self, a, index: (a, index), "partial")
    __contains__ = staticmethod(lambda value: value == 7)


@case
def special_methods_that_are_no_functions(x):
    thing = Assembled(b=x)
    return thing.a, thing.b - 1, thing(x), thing[5], 7 in thing, 8 in thing


class Asked:
    """Sees who asks it for what."""

    def __init__(self, scale):
        self.scale = scale

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


@case(keep=lambda: (Asked(2),), breaks=2)
def copies_of_an_object_that_is_asked(old, a, b):
    copied = copy.deepcopy(copy.deepcopy(old))
    copied.scale += 1
    return a * copied.scale, b * old.scale, type(copied) is Asked, vars(copied)


class Remade:
    """Is made again from arguments, not only from its attributes."""

    def __new__(cls, size=7):
        made = super().__new__(cls)
        made.sizes = [size]
        return made

    def __getnewargs__(self):
        return (self.sizes[0] + 1,)


@case(keep=lambda: (Remade(3),), breaks=None)
def copies_of_an_object_that_is_made_from_arguments(old, a, b):
    del old.sizes[1:]
    return a + 1, copy.copy(old).sizes, copy.deepcopy(Remade(5)).sizes


class Hashed:
    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return self.number


@case
def hashes_of_objects_with_large_numbers(a, b):
    numbers = (0, -1, -2, 2**61 - 1, 2**61 + 5, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**80)
    return a + 1, [hash(Hashed(number)) for number in numbers]
