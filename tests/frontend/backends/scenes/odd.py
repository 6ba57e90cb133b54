"""Odd corners: what people write when nobody looks."""

from __future__ import annotations

import abc
import contextlib
import copy
import functools
import itertools
import operator
import types
from collections import Counter, OrderedDict, UserDict, UserList, defaultdict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from tests.frontend.harness import Capture, outcome, scene, tensor


def say(*values: Any) -> None:
    print(*values, end="", file=_Nowhere())


class _Nowhere:
    def write(self, text: str) -> int:
        return len(text)


class Thing:
    def __init__(self, n: int = 0) -> None:
        self.n = n


@scene
def tuples_with_objects_as_keys(capture: Capture) -> Iterator[Any]:
    table: dict[Any, int] = {}

    def function(key: Any, n: int, x: torch.Tensor) -> Any:
        if (key, n) not in table:
            table[key, n] = len(table)
        return x + table[key, n]

    call = capture(function)
    things = [Thing(), Thing(), nn.Identity()]
    for _ in range(2):
        for thing in things:
            yield call(thing, 1, tensor()), call(thing, 2, tensor()), len(table)


@scene
def tensors_in_tuples_as_keys(capture: Capture) -> Iterator[Any]:
    table: dict[Any, int] = {}

    def function(x: torch.Tensor) -> Any:
        key = (x, "k")
        known = table.setdefault(key, len(table))
        return x + known, key in table

    call = capture(function)
    first, second = tensor(), tensor(seed=1)
    for x in (first, second, first):
        yield call(x)


@scene
def a_memo_by_identity(capture: Capture) -> Iterator[Any]:
    memo: dict[int, Any] = {}

    def function(thing: Any, x: torch.Tensor) -> Any:
        if id(thing) not in memo:
            memo[id(thing)] = x * 2
        return memo[id(thing)] + 1

    call = capture(function)
    first, second = Thing(), Thing()
    yield call(first, tensor())
    yield call(second, tensor(seed=1))
    yield call(first, tensor(seed=2))


@scene
def copies_of_arguments(capture: Capture) -> Iterator[Any]:
    def function(items: list[Any], thing: Any, x: torch.Tensor) -> Any:
        shallow, deep = copy.copy(items), copy.deepcopy(thing)
        shallow.append(x)
        deep.n += 1
        return shallow, deep.n, thing.n, shallow[0] is items[0], deep is thing

    call = capture(function)
    for n in (1, 2):
        items, thing = [tensor()], Thing(n)
        yield call(items, thing, tensor()), items, thing.n


@scene
def sorting_with_keys_that_note(capture: Capture) -> Iterator[Any]:
    def function(names: list[str], x: torch.Tensor) -> Any:
        order: list[str] = []

        def key(name: str) -> int:
            order.append(name)
            return -len(name)

        names.sort(key=key)
        best = max(names, key=len)
        return names, order, best, sorted(names, reverse=True), x + len(order)

    call = capture(function)
    for names in (["a", "bbb", "cc"], ["zz"], ["a", "bbb", "cc"]):
        yield call(list(names), tensor())


@scene
def a_list_changed_while_it_is_walked(capture: Capture) -> Iterator[Any]:
    def function(items: list[Any], x: torch.Tensor) -> Any:
        for item in items:
            if item == 1:
                items.append(5)
            if item == 2:
                items.remove(2)
            x = x + item
        return x

    call = capture(function)
    for _ in range(2):
        items = [1, 2, 3]
        yield call(items, tensor()), items


@scene
def a_dict_changed_while_it_is_walked(capture: Capture) -> Iterator[Any]:
    def function(table: dict[str, Any]) -> Any:
        for key in table:
            table[key + "x"] = 1
        return table

    yield outcome(capture(function), {"a": 1})
    yield outcome(capture(function), {})


@scene
def slices_of_lists(capture: Capture) -> Iterator[Any]:
    def function(items: list[Any], x: torch.Tensor) -> Any:
        items[1:3] = [x, x + 1, x + 2]
        del items[0]
        items[::2] = [0] * len(items[::2])
        items *= 2
        items += (x,)
        return items[-1] is x, len(items)

    call = capture(function)
    for _ in range(2):
        items: list[Any] = [1, 2, 3, 4]
        yield call(items, tensor()), items


@scene
def aliases_of_a_list_made_in_place(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, given: list[Any]) -> Any:
        mine = given
        mine += [x]
        other = given + [1]
        rows = [[0] * 2] * 3
        rows[0][0] = x
        return mine is given, other, rows, rows[0] is rows[2]

    call = capture(function)
    for _ in range(2):
        given: list[Any] = []
        yield call(tensor(), given), given


@scene
def in_place_operators_on_attributes_and_items(capture: Capture) -> Iterator[Any]:
    def function(thing: Any, table: dict[str, Any], x: torch.Tensor) -> Any:
        thing.value += x
        table["k"] *= 2
        table["l"] |= {3}
        alias = thing.value
        thing.value -= 1
        return alias is thing.value, table

    call = capture(function)
    for _ in range(2):
        thing = Thing()
        value = thing.value = tensor()  # type: ignore[attr-defined]
        table = {"k": tensor(seed=1), "l": {1}}
        yield call(thing, table, torch.ones(4)), value, thing.value is value, table  # type: ignore[attr-defined]


@scene
def in_place_operators_that_make_new_tensors(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, n: Any) -> Any:
        y = x
        y = y + n
        y += 1
        z = x
        z = z * 1
        z *= 2
        x -= 1
        return y, z, x

    call = capture(function)
    for n in (1, 2.5, 1):
        x = tensor()
        yield call(x, n), x


@scene
def chained_assignments_and_swaps(capture: Capture) -> Iterator[Any]:
    def function(items: list[Any], x: torch.Tensor) -> Any:
        a = b = items
        i = 0
        i, items[i] = 1, x
        a[0], b[1] = b[1], a[0]
        return items, a is b, i

    call = capture(function)
    for _ in range(2):
        items: list[Any] = [1, 2]
        yield call(items, tensor()), items


@scene
def nested_functions_that_see_later_values(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        def later() -> Any:
            return value

        value = x
        first = later()
        value = x * 2
        say(value)
        second = later()
        value = value + 1
        return first, second, later(), later

    call = capture(function)
    for _ in range(2):
        first, second, third, later = call(tensor())
        yield first, second, third, later() is third


@scene
def decorators_with_state(capture: Capture) -> Iterator[Any]:
    def counting(inner: Any) -> Any:
        @functools.wraps(inner)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            wrapper.calls += 1
            return inner(*args, **kwargs) * wrapper.calls

        wrapper.calls = 0
        return wrapper

    @counting
    def helper(x: torch.Tensor) -> Any:
        return x + 1

    def function(x: torch.Tensor) -> Any:
        return helper(x), helper.calls

    call = capture(function)
    for _ in range(3):
        yield call(tensor()), helper.calls
    helper.calls = 10
    yield call(tensor())


@scene
def attributes_of_functions(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        function.count = getattr(function, "count", 0) + 1
        return x * function.count

    call = capture(function)
    for _ in range(3):
        yield call(tensor()), function.count


@scene
def context_managers_made_by_generators(capture: Capture) -> Iterator[Any]:
    log: list[str] = []

    @contextlib.contextmanager
    def noted(name: str) -> Iterator[str]:
        log.append(f"in {name}")
        try:
            yield name.upper()
        except ValueError:
            log.append("swallowed")
        finally:
            log.append(f"out {name}")

    def function(x: torch.Tensor, bad: bool) -> Any:
        with noted("a") as name, contextlib.ExitStack() as stack:
            stack.enter_context(noted("b"))
            stack.callback(log.append, "callback")
            x = x + 1
            if bad:
                raise ValueError
            say(x)
            x = x * 2
        return x, name

    call = capture(function)
    for bad in (False, True, False):
        log.clear()
        yield call(tensor(), bad), list(log)


@scene
def classes_made_inside(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, n: int) -> Any:
        class Local:
            scale = n

            def apply(self, y: torch.Tensor) -> Any:
                return y * self.scale + x

        say(n)
        return Local().apply(x), Local.scale, Local.__name__

    call = capture(function)
    for n in (1, 2, 1):
        yield call(tensor(), n)


@scene
def abstract_and_generic_classes(capture: Capture) -> Iterator[Any]:
    class Base(abc.ABC):
        @abc.abstractmethod
        def step(self, x: torch.Tensor) -> Any: ...

        @property
        @abc.abstractmethod
        def name(self) -> str: ...

    class Real(Base):
        name = "real"

        def step(self, x: torch.Tensor) -> Any:
            return x + len(self.name)

    def function(model: Base, x: torch.Tensor) -> Any:
        return model.step(x), isinstance(model, Base), issubclass(Real, Base)

    call = capture(function)
    yield call(Real(), tensor())
    Real.name = "longer"
    yield call(Real(), tensor())
    yield outcome(capture(lambda: Base()))[0]


@scene
def a_metaclass_with_state(capture: Capture) -> Iterator[Any]:
    class Meta(type):
        made = 0

        def __call__(cls, *args: Any) -> Any:
            Meta.made += 1
            return super().__call__(*args)

    class Model(metaclass=Meta):
        def __init__(self, n: int) -> None:
            self.n = n

    def function(x: torch.Tensor) -> Any:
        return x * Model(3).n, Meta.made

    call = capture(function)
    for _ in range(3):
        yield call(tensor()), Meta.made


@scene
def dynamic_attributes(capture: Capture) -> Iterator[Any]:
    def function(thing: Any, names: list[str], x: torch.Tensor) -> Any:
        for name in names:
            setattr(thing, name, x + len(name))
        return [getattr(thing, name) for name in names], sorted(vars(thing)), thing.__dict__.get("zz")

    call = capture(function)
    for names in (["a", "bb"], ["c"], ["a", "bb"]):
        thing = Thing()
        yield call(thing, names, tensor()), vars(thing)


@scene
def vars_are_written_through(capture: Capture) -> Iterator[Any]:
    def function(thing: Any, x: torch.Tensor) -> Any:
        vars(thing)["late"] = x
        thing.__dict__.update(m=2)
        thing.n = thing.__dict__["n"] + thing.m
        return thing.late + thing.n

    call = capture(function)
    thing = Thing(1)
    for _ in range(3):
        yield call(thing, tensor()), vars(thing)


@scene
def user_containers(capture: Capture) -> Iterator[Any]:
    def function(table: Any, items: Any, counts: Any, x: torch.Tensor) -> Any:
        table["k"] = x
        items.append(x + 1)
        counts.update("abca")
        counts["a"] += 1
        return table["k"] + len(items), counts.most_common(1), list(table)

    call = capture(function)
    table, items, counts = UserDict(), UserList(), Counter()
    for _ in range(3):
        yield call(table, items, counts, tensor()), dict(table), list(items), dict(counts)


@scene
def star_expressions_evaluated_once(capture: Capture) -> Iterator[Any]:
    def function(items: Any, x: torch.Tensor) -> Any:
        def total(*values: Any, scale: float = 1.0) -> Any:
            return sum(values) * scale

        return total(*items, *items, scale=2.0), x + total(*items), [*items], len([*items])

    call = capture(function)
    yield call([1, 2], tensor())
    yield call((3,), tensor())
    yield call({4: 1, 5: 2}, tensor())
    yield call(range(3), tensor())
    yield call(iter([1, 2, 3]), tensor())


@scene
def string_formatting(capture: Capture) -> Iterator[Any]:
    class Named:
        def __init__(self, n: int) -> None:
            self.n = n

        def __str__(self) -> str:
            self.n += 1
            return f"named {self.n}"

        def __format__(self, spec: str) -> str:
            return f"<{spec}:{self.n}>"

    def function(named: Any, x: torch.Tensor, value: float) -> Any:
        return (
            f"{named} {named!s} {named:>5} {value:.2f} {x.shape} {x.dtype} {value!r:>10}",
            str(named),
            "%s %d" % (named, 3),
        )

    call = capture(function)
    named = Named(1)
    for value in (1.0, 2.5, 1.0):
        yield call(named, tensor(), value), named.n


@scene
def comparisons_that_return_odd_things(capture: Capture) -> Iterator[Any]:
    class Odd:
        def __eq__(self, other: object) -> Any:
            return "equal"

        def __lt__(self, other: object) -> Any:
            return []

        def __contains__(self, item: object) -> Any:
            return 5

        def __bool__(self) -> bool:
            return False

        __hash__ = None  # type: ignore[assignment]

    def function(odd: Any, x: torch.Tensor) -> Any:
        return odd == x, odd < 1, 3 in odd, not odd, odd or x, odd and x, 1 if odd else 2

    call = capture(function)
    odd = Odd()
    for _ in range(2):
        yield call(odd, tensor())[:4]


@scene
def iterators_shared_by_two_loops(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, n: int) -> Any:
        source = iter(range(n))
        first = [next(source), next(source)]
        rest = list(source)
        pairs = list(zip(*[iter([1, 2, 3, 4])] * 2))
        left, right = itertools.tee(range(3))
        say(first)
        cycle = itertools.cycle([x, x + 1])
        return first, rest, pairs, list(left), list(right), [next(cycle) for _ in range(3)]

    call = capture(function)
    for n in (2, 5):
        yield call(tensor(), n)


@scene
def zip_and_map_with_side_effects(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        log: list[Any] = []

        def noted(value: Any) -> Any:
            log.append(value)
            return value

        lazy = map(noted, [1, 2, 3])
        say(log)
        first = next(lazy)
        some = any(map(noted, [0, 0, 7, 8]))
        every = all(noted(v) for v in (1, 0, 2))
        return x + first, log, some, every, list(lazy)

    call = capture(function)
    for _ in range(2):
        yield call(tensor())


@scene
def closures_in_default_arguments(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, n: int) -> Any:
        made = []
        for i in range(n):

            def inner(y: Any, i: int = i, store: list[int] = []) -> Any:
                store.append(i)
                return y + i, list(store)

            made.append(inner)
        say(made)
        return [inner(x) for inner in made], [inner(x) for inner in made]

    call = capture(function)
    for n in (2, 3):
        yield call(tensor(), n)


@scene
def exceptions_as_values(capture: Capture) -> Iterator[Any]:
    class Custom(Exception):
        def __init__(self, code: int, x: Any) -> None:
            super().__init__(f"code {code}")
            self.code, self.x = code, x

    def function(x: torch.Tensor, n: int) -> Any:
        errors = []
        for i in range(n):
            try:
                raise Custom(i, x + i)
            except Custom as error:
                errors.append(error)
        say(n)
        return [(error.code, error.x, str(error)) for error in errors]

    call = capture(function)
    for n in (1, 2):
        yield call(tensor(), n)


@scene
def exceptions_with_notes_and_groups(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, kind: int) -> Any:
        try:
            if kind == 0:
                raise ExceptionGroup("many", [ValueError(1), TypeError(2)])
            if kind == 1:
                error = ValueError("noted")
                error.add_note("a note")
                raise error
        except* ValueError as group:
            x = x + len(group.exceptions)
        return x

    call = capture(function)
    for kind in (2, 0, 1):
        kind_of, value = outcome(call, tensor(), kind)
        yield kind_of, type(value).__name__


@scene
def a_generator_closed_early(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        log: list[str] = []

        def produce() -> Iterator[Any]:
            try:
                yield x
                yield x + 1
            finally:
                log.append("closed")

        for item in produce():
            first = item
            break
        source = produce()
        next(source)
        say(log)
        source.close()
        return first, log

    call = capture(function)
    for _ in range(2):
        yield call(tensor())


@scene
def yield_from_and_return_values(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor) -> Any:
        def inner() -> Any:
            got = yield x
            yield x + (got or 0)
            return "done"

        def outer() -> Any:
            result = yield from inner()
            yield result

        source = outer()
        first = next(source)
        second = source.send(5)
        say(second)
        return first, second, list(source)

    call = capture(function)
    for _ in range(2):
        yield call(tensor())


@scene
def properties_with_setters(capture: Capture) -> Iterator[Any]:
    class Model:
        def __init__(self) -> None:
            self._scale, self.log = 1.0, []

        @property
        def scale(self) -> float:
            self.log.append("get")
            return self._scale

        @scale.setter
        def scale(self, value: float) -> None:
            self.log.append("set")
            self._scale = value * 2

    def function(model: Any, x: torch.Tensor) -> Any:
        model.scale += 1
        return x * model.scale

    call = capture(function)
    model = Model()
    for _ in range(3):
        yield call(model, tensor()), list(model.log), model._scale


@scene
def setattr_overridden(capture: Capture) -> Iterator[Any]:
    class Model:
        def __init__(self) -> None:
            object.__setattr__(self, "log", [])

        def __setattr__(self, name: str, value: Any) -> None:
            self.log.append(name)
            super().__setattr__(name, value)

        def __delattr__(self, name: str) -> None:
            self.log.append(f"del {name}")
            super().__delattr__(name)

        def __getattribute__(self, name: str) -> Any:
            found = super().__getattribute__(name)
            return found + 1 if name == "n" else found

    def function(model: Any, x: torch.Tensor) -> Any:
        model.n = 3
        model.x = x
        del model.x
        return x + model.n

    call = capture(function)
    model = Model()
    for _ in range(2):
        yield call(model, tensor()), list(model.log), model.n


@scene
def frozen_and_replaced_data_classes(capture: Capture) -> Iterator[Any]:
    @dataclass(frozen=True)
    class Config:
        scale: float = 2.0
        names: tuple[str, ...] = ()
        extra: dict[str, int] = field(default_factory=dict)

    cache: dict[Any, Any] = {}

    def function(config: Any, x: torch.Tensor) -> Any:
        other = replace(config, scale=config.scale + 1)
        key = (config.scale, config.names)
        cache.setdefault(key, len(cache))
        return x * other.scale, other.names, other.extra is config.extra, cache[key], config == other

    call = capture(function)
    for config in (Config(), Config(3.0), Config(names=("a",)), Config()):
        yield call(config, tensor()), dict(cache)


@scene
def hashable_data_classes_as_keys(capture: Capture) -> Iterator[Any]:
    @dataclass(frozen=True)
    class Key:
        n: int
        name: str = "k"

    cache: dict[Any, Any] = {}

    def function(key: Any, x: torch.Tensor) -> Any:
        if key not in cache:
            cache[key] = x * key.n
        return cache[key] + 1, cache.get(Key(1)) is not None

    call = capture(function)
    for n in (1, 2, 1, 2, 3):
        yield call(Key(n), tensor(seed=n)), len(cache)


@scene
def named_tuples_with_methods(capture: Capture) -> Iterator[Any]:
    class Pair(NamedTuple):
        x: Any
        n: int = 2

        def scaled(self) -> Any:
            return self.x * self.n

    Old = namedtuple("Old", ["a", "b"])

    def function(pair: Any, old: Any) -> Any:
        return pair.scaled(), Pair(pair.n, 1), old._replace(a=pair.x), old == Old(1, 2), [*old]

    call = capture(function)
    for n in (2, 3, 2):
        yield call(Pair(tensor(), n), Old(1, n))


@scene
def integers_beyond_all_bounds(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, n: int) -> Any:
        return x + (n % 7), n * 2, n.bit_length(), divmod(n, 10), -n // 3, n**2 > 10, round(n / 3, 2)

    call = capture(function)
    for n in (1, 2**70, -5, 1):
        yield call(tensor(), n)
    yield outcome(capture(lambda n: 1 / n), 0)


@scene
def strings_and_bytes(capture: Capture) -> Iterator[Any]:
    def function(text: str, data: bytearray, x: torch.Tensor) -> Any:
        data.append(65)
        data[0] = 66
        return text.upper().split(","), bytes(data), text.encode(), x + len(text), text[::-1], text.join("ab")

    call = capture(function)
    for text in ("a,b", "c", "a,b"):
        data = bytearray(b"xyz")
        yield call(text, data, tensor()), bytes(data)


@scene
def lambdas_kept_in_a_dict_of_the_class(capture: Capture) -> Iterator[Any]:
    class Model(nn.Module):
        activations = {"relu": F.relu, "double": lambda x: x * 2}

        def __init__(self) -> None:
            super().__init__()
            self.kind = "relu"

        def forward(self, x: torch.Tensor) -> Any:
            return self.activations[self.kind](x)

    model = Model()
    call = capture(model)
    yield call(tensor())
    model.kind = "double"
    yield call(tensor())
    Model.activations["double"] = lambda x: x * 3
    yield call(tensor())
    model.activations = {"double": torch.neg}
    yield call(tensor())


@scene
def modules_called_in_many_ways(capture: Capture) -> Iterator[Any]:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(4.0))

        def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
            return x * self.weight * scale

        def other(self, x: torch.Tensor) -> Any:
            return self(x) + self.forward(x, scale=2.0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()
            self.blocks = nn.ModuleDict({"a": Inner(), "b": nn.Tanh()})
            self.items = nn.ParameterList([nn.Parameter(torch.ones(4) * n) for n in range(3)])

        def forward(self, x: torch.Tensor) -> Any:
            y = self.inner.other(x)
            for name, block in self.blocks.items():
                y = block(y) + len(name)
            for parameter in self.items:
                y = y + parameter
            return y, sum(p.numel() for p in self.parameters()), [n for n, _ in self.named_children()]

    model = Model()
    call = capture(model)
    yield call(tensor())
    model.blocks["c"] = nn.ReLU()
    yield call(tensor())
    model.items.append(nn.Parameter(torch.ones(4) * 10))
    yield call(tensor())
    del model.blocks["b"]
    yield call(tensor())


@scene
def operators_of_the_operator_module(capture: Capture) -> Iterator[Any]:
    def function(x: torch.Tensor, items: list[Any], thing: Any) -> Any:
        operator.setitem(items, 0, x)
        operator.iadd(items, [1])
        get = operator.attrgetter("n", "inner.n")
        pick = operator.itemgetter(1, -1)
        return operator.mul(x, 2), get(thing), pick(items), functools.reduce(operator.add, [x, x, x])

    call = capture(function)
    for n in (1, 2, 1):
        thing = Thing(n)
        thing.inner = Thing(n * 10)  # type: ignore[attr-defined]
        items: list[Any] = [0, 2]
        yield call(x := tensor(), items, thing), items[0] is x


@scene
def partial_functions(capture: Capture) -> Iterator[Any]:
    def scaled(x: torch.Tensor, k: Any = 1, *, shift: float = 0.0) -> Any:
        return x * k + shift

    holder = {"f": functools.partial(scaled, k=2)}

    def function(x: torch.Tensor) -> Any:
        made = functools.partial(holder["f"], shift=1.0)
        return made(x), holder["f"](x), made.keywords, made

    call = capture(function)
    *rest, made = call(tensor())
    yield rest, made(torch.ones(2))
    holder["f"] = functools.partial(scaled, k=3)
    *rest, made = call(tensor())
    yield rest, made(torch.ones(2))
    holder["f"].keywords["k"] = 7
    *rest, made = call(tensor())
    yield rest, made(torch.ones(2))


@scene
def bound_methods_kept_and_compared(capture: Capture) -> Iterator[Any]:
    class Model:
        def __init__(self, n: int) -> None:
            self.n = n
            self.step = self.first

        def first(self, x: torch.Tensor) -> Any:
            return x + self.n

        def second(self, x: torch.Tensor) -> Any:
            return x - self.n

    def function(model: Any, x: torch.Tensor) -> Any:
        return model.step(x), model.step == model.first

    call = capture(function)
    model, other = Model(2), Model(5)
    yield call(model, tensor())
    model.step = model.second
    yield call(model, tensor())
    model.step = other.first
    yield call(model, tensor())
    other.n = 50
    yield call(model, tensor())


@scene
def walrus_and_conditional_expressions(capture: Capture) -> Iterator[Any]:
    def function(items: list[Any], x: torch.Tensor) -> Any:
        if (n := len(items)) > 1 and (first := items[0]) is not None:
            x = x + n + first
        total = [y := 1, y**2, (y := y + 1)]
        return x, total, y, (lambda: n)()

    call = capture(function)
    for items in ([1, 2], [], [None, 1], [1, 2]):
        yield call(items, tensor())


@scene
def truth_of_containers(capture: Capture) -> Iterator[Any]:
    def function(items: Any, table: Any, text: str, x: torch.Tensor) -> Any:
        return bool(items), not table, x + 1 if text else x - 1, items or "none", table and "some"

    call = capture(function)
    for items, table, text in (([], {}, ""), ([1], {}, "a"), ((), {"k": 1}, ""), ([], {}, "")):
        yield call(items, table, text, tensor())


@scene
def deleting_what_was_given(capture: Capture) -> Iterator[Any]:
    def function(table: dict[str, Any], items: list[Any], x: torch.Tensor) -> Any:
        del table["a"], items[0]
        gone = table.pop("b", "nothing")
        items.clear()
        table.clear()
        table["new"] = x
        return gone

    call = capture(function)
    for _ in range(2):
        table, items = {"a": 1, "b": tensor()}, [1, 2]
        yield call(table, items, tensor()), table, items
    yield outcome(call, {}, [1], tensor())


@scene
def an_ordered_dict_in_another_order(capture: Capture) -> Iterator[Any]:
    def function(table: Any, x: torch.Tensor) -> Any:
        for name, scale in table.items():
            x = x * scale + len(name)
        table.move_to_end(next(iter(table)))
        return x, list(table)

    call = capture(function)
    for names in (["a", "bb"], ["bb", "a"], ["a", "bb"]):
        table = OrderedDict((name, len(name) + 1) for name in names)
        yield call(table, tensor()), list(table.items())


@scene
def defaults_from_other_functions(capture: Capture) -> Iterator[Any]:
    def helper(x: torch.Tensor, store: dict[str, Any] = {"n": 0}, *, items: list[int] = [1]) -> Any:
        store["n"] += 1
        items.append(store["n"])
        return x + store["n"] + len(items)

    def function(x: torch.Tensor) -> Any:
        return helper(x), helper(x)

    call = capture(function)
    for _ in range(3):
        yield call(tensor()), helper.__defaults__, helper.__kwdefaults__


@scene
def namespaces_and_types(capture: Capture) -> Iterator[Any]:
    def function(space: Any, x: torch.Tensor) -> Any:
        space.count += 1
        made = types.SimpleNamespace(x=x, n=space.count)
        kind = type(space)
        return (
            made,
            kind is types.SimpleNamespace,
            isinstance(x, torch.Tensor),
            type(x) is torch.Tensor,
            vars(made)["n"],
        )

    call = capture(function)
    space = types.SimpleNamespace(count=0)
    for _ in range(3):
        yield call(space, tensor()), space.count


@scene
def counters_kept_by_default_dicts(capture: Capture) -> Iterator[Any]:
    def function(counts: Any, groups: Any, x: torch.Tensor) -> Any:
        for name in ("a", "b", "a"):
            counts[name] += 1
            groups[name].append(counts[name])
        return x + counts["a"], dict(groups)

    call = capture(function)
    counts: Any = defaultdict(int)
    groups: Any = defaultdict(list)
    for _ in range(3):
        yield call(counts, groups, tensor()), dict(counts), dict(groups)
