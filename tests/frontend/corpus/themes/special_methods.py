"""Special methods that few classes have, and where Python looks for them."""

from __future__ import annotations

import collections
import copy
import functools
import heapq
import itertools
import math
import types

import torch

from tests.frontend.corpus.registry import case


class Number:
    def __init__(self, n):
        self.n = n

    def __index__(self):
        return self.n

    def __int__(self):
        return self.n + 100

    def __float__(self):
        return self.n + 0.5

    def __complex__(self):
        return complex(self.n, 1)

    def __round__(self, digits=None):
        return ("rounded", digits)

    def __trunc__(self):
        return -self.n

    def __floor__(self):
        return "floor"

    def __ceil__(self):
        return "ceil"

    def __divmod__(self, other):
        return ("divmod", other)

    def __rdivmod__(self, other):
        return ("rdivmod", other)

    def __pow__(self, other, modulo=None):
        return ("pow", other, modulo)

    def __bytes__(self):
        return b"bytes"

    def __dir__(self):
        return ["one", "two"]

    def __sizeof__(self):
        return 7


class Backwards:
    def __reversed__(self):
        return iter("cba")

    def __length_hint__(self):
        return 3

    def __iter__(self):
        return iter("abc")


class Copied:
    def __init__(self, x):
        self.x = x

    def __copy__(self):
        return Copied(("copied", self.x))

    def __deepcopy__(self, memo):
        return Copied(("deep", self.x))


class Deleting:
    def __init__(self):
        self.log = []

    def __delattr__(self, name):
        self.log.append(f"attribute {name}")

    def __delitem__(self, key):
        self.log.append(f"item {key}")

    def __getitem__(self, key):
        return key


class Even(type):
    def __instancecheck__(cls, value):
        return isinstance(value, int) and value % 2 == 0

    def __subclasscheck__(cls, other):
        return other is int

    def __len__(cls):
        return 5

    def __contains__(cls, value):
        return value == "in"

    def __iter__(cls):
        return iter((1, 2))

    def __getitem__(cls, key):
        return ("class item", key)

    def __call__(cls, *args):
        return ("made", super().__call__())


class Evens(metaclass=Even):
    pass


class Typed:
    def __class_getitem__(cls, key):
        return (cls.__name__, key)


class Reflected:
    def __radd__(self, other):
        return ("radd", other)

    def __rmul__(self, other):
        return ("rmul", other)

    def __rmatmul__(self, other):
        return "rmatmul"

    def __rand__(self, other):
        return "rand"

    def __rpow__(self, other):
        return "rpow"

    def __rlshift__(self, other):
        return "rlshift"

    def __rtruediv__(self, other):
        return "rtruediv"

    def __rfloordiv__(self, other):
        return "rfloordiv"

    def __rmod__(self, other):
        return "rmod"


class InPlace:
    def __init__(self):
        self.log = []

    def __iadd__(self, other):
        self.log.append(("+", other))
        return self

    def __imul__(self, other):
        self.log.append(("*", other))
        return self

    def __ior__(self, other):
        self.log.append(("|", other))
        return self

    def __imatmul__(self, other):
        return "replaced"


class Compared:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return NotImplemented if not isinstance(other, Compared) else self.n == other.n

    def __lt__(self, other):
        return self.n < other.n

    def __le__(self, other):
        return self.n <= other.n

    def __hash__(self):
        return 1


class Truth:
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size


class Attributes:
    """Everything about attributes goes through these."""

    def __init__(self):
        object.__setattr__(self, "table", {"x": 1})

    def __getattr__(self, name):
        try:
            return self.table[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self.table[name] = value

    def __delattr__(self, name):
        del self.table[name]


@case(breaks=9)
def conversions(a, b):
    n = Number(2)
    return (
        int(n),
        float(n),
        complex(n),
        bytes(n),
        round(n),
        round(n, 2),
        math.trunc(n),
        math.floor(n),
        math.ceil(n),
        a,
    )


@case(breaks=2)
def index_where_a_number_is_wanted(a, b):
    n = Number(1)
    return [5, 6, 7][n], range(5)[n], hex(n), "abc"[n], [1, 2, 3][: Number(2)], bin(Number(3)), a[Number(0)]


@case(breaks=3)
def arithmetic_of_two_kinds(a, b):
    n = Number(3)
    return divmod(n, 2), divmod(7, n), pow(n, 2), pow(n, 2, 5), n**4, a


@case
def reversed_and_hinted(a, b):
    things = Backwards()
    return list(reversed(things)), list(things), "b" in things, "".join(things), a


@case(breaks=1)
def copies(a, b):
    return copy.copy(Copied(1)).x, copy.deepcopy(Copied(2)).x, a


@case
def deletions(a, b):
    deleting = Deleting()
    del deleting.name
    del deleting[3]
    del deleting["k"], deleting.other
    return deleting.log, deleting[1:2], deleting[1, ..., None], a


@case
def methods_of_the_metaclass(a, b):
    return (
        isinstance(4, Evens),
        isinstance(3, Evens),
        issubclass(int, Evens),
        len(Evens),
        "in" in Evens,
        list(Evens),
        Evens[3],
        Evens()[0],
        a,
    )


@case
def subscripted_class(a, b):
    return Typed[int], Typed["x", 1], a


@case
def reflected_operators(a, b):
    r = Reflected()
    return 1 + r, 2 * r, [1] @ r, 3 & r, 2**r, 1 << r, 1 / r, 1 // r, 1 % r, a


@case
def in_place_operators(a, b):
    x = y = InPlace()
    x += 1
    x *= 2
    x |= 3
    z = x
    z @= 4
    return x is y, x.log, z, a


@case(breaks=1)
def comparisons_fall_back(a, b):
    x, y = Compared(1), Compared(2)
    return (
        x == 1,
        x != 1,
        x == Compared(1),
        x != y,
        x < y,
        x > y,
        x >= y,
        max(x, y).n,
        min([y, x]).n,
        sorted([y, x])[0].n,
        a,
    )


@case
def truth_by_length(a, b):
    return (
        bool(Truth(0)),
        bool(Truth(2)),
        not Truth(0),
        (Truth(0) or "empty"),
        [1 if Truth(1) else 2],
        all([Truth(1), Truth(0)]),
        a,
    )


@case
def attributes_by_special_methods(a, b):
    attributes = Attributes()
    attributes.y = a
    before = attributes.x, attributes.y is a, hasattr(attributes, "z")
    del attributes.y
    return before, hasattr(attributes, "y"), attributes.table


@case
def special_methods_are_found_on_the_class(a, b):
    truth = Truth(3)
    truth.__len__ = lambda: 99
    return len(truth), truth.__len__(), a


@case
def tensor_operators_with_a_class_that_reflects(a, b):
    class Scale:
        def __init__(self, by):
            self.by = by

        def __rmul__(self, other):
            return other * self.by

        def __mul__(self, other):
            return other * self.by

        __array_priority__ = 1000

    return Scale(2) * a, Scale(3).__rmul__(b)


@case
def tensors_indexed_by_objects(a, b):
    return a[Number(1)], b[Number(0) : Number(2)], a[Number(1), Number(2)]


@case(breaks=2)
def hash_and_equality_in_containers(a, b):
    items = [Compared(1), Compared(2)]
    table = {Compared(1): "one"}
    return (
        Compared(1) in items,
        items.index(Compared(2)),
        items.count(Compared(1)),
        table[Compared(1)],
        Compared(3) in table,
        a,
    )


@case(breaks=1, hits=False)
def class_body_with_logic(a, b):
    class Local:
        values = [i * 2 for i in range(3)]
        total = sum(values)
        if total > 3:
            label = "big"
        else:
            label = "small"
        for name in ("p", "q"):
            locals()[name] = name * 2

        def scaled(self, x):
            return x * self.total

    return Local().scaled(a), Local.label, Local.values, Local.p


@case
def class_decorator(a, b):
    def tagged(cls):
        cls.tag = cls.__name__ + "!"
        return cls

    @tagged
    class Local:
        def get(self):
            return self.tag

    return Local().get(), a


@case
def property_made_by_call(a, b):
    class Local:
        def __init__(self, x):
            self._x = x

        def _get(self):
            return self._x + 1

        def _set(self, value):
            self._x = value

        x = property(_get, _set, doc="the x")

    local = Local(a)
    local.x = b
    return local.x, Local.x.__doc__


@case
def super_in_many_places(a, b):
    class One:
        def run(self, x):
            return x + 1

        @classmethod
        def name(cls):
            return "one " + cls.__name__

        @property
        def width(self):
            return 1

    class Two(One):
        def run(self, x):
            values = [super(Two, self).run(x) for _ in range(2)]
            return sum(values) + super().run(x)

        @classmethod
        def name(cls):
            return super().name() + "!"

        @property
        def width(self):
            return super().width + 1

    return Two().run(a), Two.name(), Two().width


@case
def diamond(a, b):
    class Root:
        def run(self, x):
            return [x]

    class Left(Root):
        def run(self, x):
            return ["left", *super().run(x)]

    class Right(Root):
        def run(self, x):
            return ["right", *super().run(x)]

    class Both(Left, Right):
        def run(self, x):
            return ["both", *super().run(x)]

    return Both().run(a)


class Pair:
    def __init__(self, first, second):
        self.members = [first, second]

    def __iter__(self):
        return iter(self.members)

    def __lt__(self, other):
        return False


@case
def iterable_objects_that_functions_in_c_keep(a, b):
    pair = Pair(a, b)
    heap, queue, bag = [], collections.deque([pair]), {pair}
    heapq.heappush(heap, pair)
    bag.discard(pair)
    kept = [
        {}.pop("missing", pair),
        collections.defaultdict(list).pop("missing", pair),
        next(itertools.repeat(pair, 1)),
        types.MethodType(lambda self: self, pair)(),
        functools.partial(lambda x: x, pair)(),
        functools.reduce(lambda x, y: x, [1, 2], pair),
        slice(pair).stop,
        ValueError(pair).args[0],
        heap[0],
    ]
    return a + 1, [each is pair for each in kept], queue.count(pair), queue.index(pair), len(bag)


@case
def iterable_objects_that_functions_in_c_iterate_over(a, b):
    pair, mapping = Pair(1, 2), collections.UserDict(x=a, y=b)
    merged = collections.OrderedDict(mapping)
    merged.update(collections.UserDict(z=a * b))
    numbers = [
        {3}.union(pair),
        set.union({3}, pair),
        dict.fromkeys(pair),
        collections.Counter(pair),
        list(itertools.chain(pair, pair)),
        math.prod(pair),
        torch.Size(pair),
    ]
    return dict(mapping)["y"], merged["z"], list(merged), numbers


@case(breaks=1)
def bytes_of_an_iterable_object(a, b):
    return a + 1, bytes(Pair(1, 2))


@case
def mapping_of_the_user_as_a_default(a, b):
    shared = {}.pop("shared", collections.UserDict())
    for name, value in {"a": a, "b": b}.items():
        shared[name] = value * 2
    return shared["a"] + shared["b"], len(shared)


class Makers(collections.OrderedDict):
    """As libraries keep their activation functions: what is read is made."""

    def __getitem__(self, name):
        return super().__getitem__(name)()


MAKERS = Makers(relu=torch.nn.ReLU, prelu=torch.nn.PReLU)


@case
def dict_that_makes_what_it_gives(a, b):
    return MAKERS["relu"](a), len(MAKERS), list(MAKERS)


@case
def mapping_of_a_dict_that_makes_what_it_gives(a, b):
    makers = Makers(relu=torch.nn.ReLU, tanh=torch.nn.Tanh)
    return {**makers}["relu"](a), dict(makers)["tanh"](b)
