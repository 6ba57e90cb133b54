"""Classes of the user: everything a class can define."""

from __future__ import annotations

import abc
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch

from tests.frontend.corpus.registry import case

T = TypeVar("T")


class Base:
    scale = 2

    def __init__(self, value):
        self.value = value

    def forward(self, x):
        return x * self.scale + self.value

    @property
    def doubled(self):
        return self.value * 2

    @doubled.setter
    def doubled(self, new):
        self.value = new / 2

    @doubled.deleter
    def doubled(self):
        self.value = 0

    @staticmethod
    def shifted(x, by=1):
        return x + by

    @classmethod
    def of(cls, *args):
        return cls(*args)


class Child(Base):
    scale = 3

    def __init__(self, value, extra):
        super().__init__(value)
        self.extra = extra

    def forward(self, x):
        return super().forward(x) + self.extra

    @property
    def doubled(self):
        return super().doubled + 1


class Mixin:
    def forward(self, x):
        return -super().forward(x)


class Mixed(Mixin, Child):
    pass


class Vector:
    def __init__(self, x):
        self.x = x

    def __add__(self, other):
        return Vector(self.x + (other.x if isinstance(other, Vector) else other))

    __radd__ = __add__

    def __mul__(self, other):
        return Vector(self.x * other)

    def __rsub__(self, other):
        return Vector(other - self.x)

    def __neg__(self):
        return Vector(-self.x)

    def __iadd__(self, other):
        self.x = self.x + other
        return self

    def __matmul__(self, other):
        return Vector(self.x @ other.x.t())

    def __getitem__(self, key):
        return self.x[key]

    def __setitem__(self, key, value):
        self.x = self.x.clone()
        self.x[key] = value

    def __len__(self):
        return self.x.shape[0]

    def __contains__(self, value):
        return value == "x"

    def __call__(self, y):
        return self.x - y

    def __bool__(self):
        return self.x.dim() > 1

    def __lt__(self, other):
        return len(self) < len(other)

    def __abs__(self):
        return Vector(self.x.abs())

    def __invert__(self):
        return "inverted"


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n


class BySequence:
    """Iterable through `__getitem__` alone."""

    def __getitem__(self, index):
        if index > 2:
            raise IndexError
        return index * 10


class Key:
    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return isinstance(other, Key) and self.name == other.name

    def __hash__(self):
        return hash(self.name)

    def __repr__(self):
        return f"Key({self.name})"

    def __format__(self, spec):
        return f"<{self.name}:{spec}>"


class Proxy:
    def __init__(self, target):
        self.target = target

    def __getattr__(self, name):
        return getattr(self.target, name)


class Recording:
    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
        object.__setattr__(self, "last", name)


class Intercepting:
    def __init__(self):
        self.x = 3

    def __getattribute__(self, name):
        if name == "magic":
            return 42
        return object.__getattribute__(self, name)


class Positive:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner):
        return self if instance is None else getattr(instance, self.name, 1)

    def __set__(self, instance, value):
        setattr(instance, self.name, abs(value))


class Described:
    width = Positive()

    def __init__(self, width):
        self.width = width


class Slotted:
    __slots__ = ("x", "n")

    def __init__(self, x, n):
        self.x, self.n = x, n

    def product(self):
        return self.x * self.n


class Registry(type):
    known = {}

    def __new__(mcls, name, bases, namespace):
        cls = super().__new__(mcls, name, bases, namespace)
        mcls.known[name] = cls
        return cls

    @property
    def label(cls):
        return cls.__name__.lower()


class Relu(metaclass=Registry):
    def __call__(self, x):
        return torch.relu(x)


class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self, x): ...

    def twice(self, x):
        return self.run(self.run(x))


class Concrete(Abstract):
    def run(self, x):
        return x + 1


class Singleton:
    instance = None

    def __new__(cls):
        if cls.instance is None:
            cls.instance = super().__new__(cls)
        return cls.instance


@runtime_checkable
class Runs(Protocol):
    def run(self, x): ...


class Box(Generic[T]):
    def __init__(self, item: T):
        self.item = item


class Counter:
    made = 0

    def __init__(self):
        self.count = 0

    def bump(self, by=1):
        self.count += by
        return self


class Fluent:
    def __init__(self):
        self.steps = []

    def add(self, step):
        self.steps.append(step)
        return self

    def run(self, x):
        for step in self.steps:
            x = step(x)
        return x


@case
def attributes_and_methods(a, b):
    base = Base(b)
    return base.forward(a), base.value is b, Base.scale, base.scale


@case(breaks=1)
def properties(a, b):
    base = Base(a)
    before = base.doubled
    base.doubled = b
    middle = base.value
    del base.doubled
    return before, middle, base.value


@case
def static_and_class_methods(a, b):
    return (
        Base.shifted(a),
        Base(1).shifted(b, by=2),
        Base.of(a).value,
        Child.of(1, 2).extra,
        type(Child.of(1, 2)).__name__,
    )


@case
def inheritance_and_super(a, b):
    child = Child(a, b)
    return child.forward(a), child.doubled, isinstance(child, Base), Child.__mro__[1] is Base, child


@case
def multiple_inheritance(a, b):
    return Mixed(a, 1).forward(b), [c.__name__ for c in Mixed.__mro__[:3]]


@case(breaks=1)
def operators_of_the_user(a, b):
    v, w = Vector(a), Vector(b)
    return (v + w).x, (v + 1).x, (1 + v).x, (v * 2).x, (3 - v).x, (-v).x, (v @ w).x, abs(v).x, ~v


@case
def operators_in_place_of_the_user(a, b):
    v = Vector(a)
    same = v
    v += b
    v[0] = 7.0
    return v.x, same is v, v[0]


@case(breaks=1)
def container_methods_of_the_user(a, b):
    v = Vector(a)
    return len(v), "x" in v, "y" in v, v[1], bool(v), v(b), v < Vector(b[:1]), sorted([v, Vector(b[:1])])[0].x


@case(breaks=6)
def iterators_of_the_user(a, b):
    total = a
    for n in Countdown(3):
        total = total + b * n
    return total, list(Countdown(2)), sum(Countdown(4)), list(BySequence()), [x for x in BySequence()]


@case
def equality_and_hash(a, b):
    table = {Key("x"): a, Key("y"): b}
    return (
        table[Key("x")],
        Key("x") == Key("x"),
        Key("x") != Key("y"),
        Key("z") in table,
        len({Key("q"), Key("q")}),
    )


@case(breaks=1)
def repr_and_format(a, b):
    key = Key("k")
    return repr(key), str(key), f"{key:>3}", f"{key!r}", [key].__repr__(), a


@case
def getattr_of_the_user(a, b):
    proxy = Proxy(Base(a))
    return proxy.value, proxy.forward(b), hasattr(proxy, "missing"), getattr(proxy, "missing", 1)


@case
def setattr_of_the_user(a, b):
    recording = Recording()
    recording.x = a
    recording.y = b
    return recording.last, recording.x + recording.y


@case
def getattribute_of_the_user(a, b):
    intercepting = Intercepting()
    return a * intercepting.magic, intercepting.x


@case
def descriptors(a, b):
    described = Described(-3)
    described.width = -5
    return a * described.width, described._width, isinstance(Described.width, Positive)


@case
def slots(a, b):
    slotted = Slotted(a, 2)
    slotted.n += 1
    try:
        slotted.other = 1
    except AttributeError:
        return slotted.product(), slotted


@case
def metaclasses(a, b):
    return Registry.known["Relu"]()(a), Relu.label, type(Relu) is Registry, isinstance(Relu, type)


@case
def abstract_classes(a, b):
    try:
        Abstract()
    except TypeError:
        return Concrete().twice(a), isinstance(Concrete(), Abstract)


@case
def new_of_the_user(a, b):
    return Singleton() is Singleton(), a


@case
def protocols_and_generics(a, b):
    return isinstance(Concrete(), Runs), isinstance(3, Runs), Box[int](3).item, Box(a).item


@case
def class_made_inside(a, b):
    class Local:
        factor = 3

        def __init__(self, x):
            self.x = x

        def run(self):
            return self.x * self.factor + b

    return Local(a).run(), Local.__name__


@case
def class_made_inside_with_super(a, b):
    class Local(Base):
        def forward(self, x):
            return super().forward(x) - 1

    return Local(b).forward(a), isinstance(Local(1), Base)


@case
def changes_of_an_object_made_inside(a, b):
    counter = Counter()
    counter.bump().bump(3)
    counter.extra = a
    counter.count -= 1
    return counter.count, counter.extra, counter


@case
def method_chains(a, b):
    return Fluent().add(torch.relu).add(lambda x: x + 1).run(a)


@case(keep=lambda: (Base(3),))
def object_as_argument(base, a):
    return base.forward(a), base.doubled, base


@case(keep=lambda: (Counter(),), hits=False)
def object_as_argument_is_changed(counter, a):
    counter.bump()
    return a * counter.count


@case(keep=lambda: (Base(torch.ones(4)),))
def tensor_attribute_is_replaced(base, a):
    base.value = base.value + a.sum(0)
    base.seen = a
    return base.value * 2


@case(keep=lambda: (Counter(),))
def attribute_is_added_and_deleted(counter, a):
    counter.temporary = a
    result = counter.temporary + 1
    del counter.temporary
    return result, hasattr(counter, "temporary")


@case(make=lambda size: (Base(2.5), torch.randn(size, 4)))
def a_fresh_object_as_argument(base, a):
    base.value = 7
    return base.forward(a)


@case(make=lambda size: (Slotted(torch.randn(size, 4), 3),))
def a_slotted_object_as_argument(slotted):
    slotted.n = 9
    return slotted.product()


@case
def bound_and_unbound_methods(a, b):
    base = Base(a)
    bound = base.forward
    return bound(b), Base.forward(base, b), bound.__self__ is base, bound.__func__ is Base.forward


@case
def class_attribute_is_shadowed(a, b):
    base = Base(a)
    base.scale = 10
    return base.forward(b), Base.scale, "scale" in base.__dict__, vars(base).keys() >= {"scale"}


@case
def dunder_dict_and_class(a, b):
    base = Base(a)
    base.__dict__["added"] = b
    return (
        base.added,
        base.__class__.__name__,
        base.__class__ is Base,
        Base.__name__,
        Base.__module__.endswith("classes"),
    )


@case
def instance_check_of_many(a, b):
    things = [Base(1), Child(1, 2), 3, a]
    return (
        [isinstance(t, (Base, int)) for t in things],
        [type(t).__name__ for t in things],
        issubclass(Child, Base),
    )


@case
def objects_hold_each_other(a, b):
    parent, child = Base(a), Base(b)
    parent.child, child.parent = child, parent
    return parent.child.parent.value + parent.child.value


@case
def subclass_of_list_and_dict(a, b):
    class Items(list):
        def total(self):
            return sum(self)

    class Table(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key.upper(), value)

    items = Items([a])
    items.append(b)
    table = Table()
    table["x"] = a
    return items.total(), table["X"], len(items), items


@case
def subclass_of_number_and_string(a, b):
    class Width(int):
        def doubled(self):
            return Width(self * 2)

    class Name(str):
        def shout(self):
            return self.upper() + "!"

    return a * Width(3), Width(2).doubled() + 0, Name("x").shout()


@case
def init_subclass(a, b):
    made = []

    class Root:
        def __init_subclass__(cls, **options):
            made.append((cls.__name__, options))

    class Leaf(Root, size=3):
        pass

    return made, a


@case
def delegated_call(a, b):
    class Layer:
        def __call__(self, *args, **kwargs):
            return self.forward(*args, **kwargs)

    class Add(Layer):
        def forward(self, x, *, y):
            return x + y

    return Add()(a, y=b)


@case
def what_an_attribute_error_names(a, b):
    class Asked:
        @property
        def fails(self):
            raise AttributeError("of the property")

        def __getattr__(self, name):
            if name == "told":
                raise AttributeError(name, name="its own")
            raise AttributeError(name)

    asked, told = Asked(), []
    for name in ("missing", "told", "fails"):
        try:
            getattr(asked, name)
        except AttributeError as error:
            told.append((error.name, error.obj is asked, str(error)))
    return told, a
