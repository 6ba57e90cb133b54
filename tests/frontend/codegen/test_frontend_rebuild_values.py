"""Live values are made again: equal, of one type, shared and cyclic as they were. Old ones are the same."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import itertools
import math
import operator
import threading
from types import CellType, FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rebuild_world import SmallWorld
from torch._subclasses.fake_tensor import FakeTensorMode

from torchrepro.frontend.bytecode.program import NULL
from torchrepro.frontend.codegen.objects import CannotRebuild, ShadowKind, attributes, is_full, slots
from torchrepro.frontend.codegen.rebuild import is_constant, is_global_object


class Forbidden(AssertionError):
    pass


class Box:
    """Everything a user may override raises, once the object is there."""

    armed = False

    def __init__(self, **state: Any) -> None:
        if Box.armed:
            raise Forbidden("__init__")
        self.__dict__.update(state)

    def __setattr__(self, name: str, value: Any) -> None:
        raise Forbidden("__setattr__")

    def __getattribute__(self, name: str) -> Any:
        if Box.armed and not name.startswith("__"):
            raise Forbidden("__getattribute__")
        return object.__getattribute__(self, name)


class Slotted:
    __slots__ = ("__private", "never", "x")

    def __init__(self, x: Any = None, private: Any = None) -> None:
        self.x = x
        self.__private = private


class Mixed(Slotted):
    """Slots of a base, and a `__dict__`."""


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Any


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    a: Any


class Loud(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise Forbidden("__iter__")

    def append(self, item: Any) -> None:
        raise Forbidden("append")

    extend = __setitem__ = append  # type: ignore[assignment]


class LoudDict(collections.OrderedDict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        raise Forbidden("__setitem__")

    def items(self) -> Any:
        raise Forbidden("items")


class Text(str):
    def __str__(self) -> str:
        raise Forbidden("__str__")


class Number(int):
    def __int__(self) -> int:
        raise Forbidden("__int__")


class Pair(tuple):  # type: ignore[type-arg]
    pass


class Colour(enum.Enum):
    RED = 1


def parts(value: Any) -> list[Any]:
    """What an object consists of, for walking two of them side by side."""
    found: list[Any] = []
    if isinstance(value, dict):
        found += [part for item in dict.items(value) for part in item]
    elif isinstance(value, list):
        found += list.__iter__(value)
    elif isinstance(value, tuple | collections.deque):
        found += value
    elif isinstance(value, set | frozenset):
        found += sorted(value, key=repr)
    elif isinstance(value, CellType):
        found += [value.cell_contents] if is_full(value) else ["empty"]
    elif isinstance(value, FunctionType):
        found += [value.__code__, *(value.__closure__ or ()), value.__defaults__, value.__kwdefaults__]
    elif isinstance(value, functools.partial):
        found += [value.func, value.args, value.keywords]
    elif isinstance(value, BaseException):
        found += [value.args, value.__cause__, value.__context__, value.__suppress_context__]
    if not isinstance(value, type) and type(value).__module__ != "types":
        found += [part for item in slots(value) for part in item]
        found += [part for item in attributes(value).items() for part in item]
    return found


def assert_same(one: Any, other: Any, old: tuple[Any, ...] = ()) -> None:
    """Equal as graphs of objects: the same types, the same sharing; old objects are themselves."""
    partner: dict[int, Any] = {}
    taken: set[int] = set()
    todo = [(one, other)]
    while todo:
        left, right = todo.pop()
        assert type(left) is type(right)
        if is_constant(left):
            assert left == right or repr(left) == repr(right)  # a NaN
        elif is_global_object(left) or any(left is it for it in old):
            assert right is left
        elif id(left) in partner:
            assert partner[id(left)] is right
        else:
            assert right is not left
            assert id(right) not in taken
            partner[id(left)] = right
            taken.add(id(right))
            mine, theirs = parts(left), parts(right)
            assert len(mine) == len(theirs)
            todo += zip(mine, theirs, strict=True)


CONSTANTS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.binary(),
    st.sampled_from([..., math.nan, -0.0, "'\\n{}\ud800", (1, (2, math.inf)), range(3), slice(1, None)]),
)
MUTABLE = (
    list,
    dict,
    collections.OrderedDict,
    collections.deque,
    Box,
    Slotted,
    Mixed,
    Loud,
    LoudDict,
    CellType,
)
IMMUTABLE = (tuple, Pair, Point, Frozen, FrozenSlots, functools.partial)


def fill(shell: Any, contents: list[Any], keys: list[Any]) -> None:
    """Past the classes' own methods, which raise."""
    if isinstance(shell, list):
        list.extend(shell, contents)
    elif isinstance(shell, collections.OrderedDict):
        for key, item in zip(keys, contents, strict=False):
            collections.OrderedDict.__setitem__(shell, key, item)
    elif isinstance(shell, dict):
        shell.update(zip(keys, contents, strict=False))
    elif isinstance(shell, collections.deque):
        shell.extend(contents)
    elif isinstance(shell, CellType):
        if contents:
            shell.cell_contents = contents[0]
    elif isinstance(shell, Slotted):
        shell.x = contents
    if type(shell) in (Box, Mixed, Loud, LoudDict):
        shell.__dict__.update(zip(map(str, keys), contents, strict=False))


@st.composite
def object_graphs(draw: st.DrawFn) -> tuple[SmallWorld, Any]:
    """Objects that share parts, some old, with cycles through the mutable ones."""
    world = SmallWorld()
    nodes: list[Any] = draw(st.lists(CONSTANTS, min_size=1, max_size=4))
    nodes += [torch.tensor(draw(st.integers(0, 9)))]
    nodes += [world.old(f"old {number}", [number]) for number in range(draw(st.integers(0, 2)))]
    shells = [world.made(kind()) for kind in draw(st.lists(st.sampled_from(MUTABLE), max_size=6))]
    nodes += shells
    for kind in draw(st.lists(st.sampled_from(IMMUTABLE), max_size=6)):
        picked = [nodes[at % len(nodes)] for at in draw(st.lists(st.integers(0, 99), min_size=2, max_size=2))]
        if kind is functools.partial:
            nodes.append(functools.partial(print, *picked))
        else:
            nodes.append(world.made(Point(*picked) if kind is Point else kind(picked)))
    for shell in shells:
        picked = [nodes[at % len(nodes)] for at in draw(st.lists(st.integers(0, 99), max_size=4))]
        fill(shell, picked, draw(st.lists(st.integers() | st.text(), min_size=4, max_size=4, unique_by=str)))
    return world, nodes


@given(object_graphs())
@settings(max_examples=300, deadline=None)
def test_any_graph_of_objects_is_made_again(graph: tuple[SmallWorld, Any]) -> None:
    world, value = graph
    old = tuple(world.locals.values())
    region = world.region(value)
    Box.armed = True
    try:
        rebuilt = region.run(world.locals, {}, ())
    finally:
        Box.armed = False
    assert_same(value, rebuilt, old)
    assert_same(value, region.run(world.locals, {}, ()), old)


def test_a_tuple_in_a_list_in_that_tuple() -> None:
    inner: list[Any] = []
    value = (inner, 1)
    inner.append(value)
    inner.append((value, inner))
    rebuilt = SmallWorld().rebuilt(value)
    assert rebuilt[0][0] is rebuilt
    assert rebuilt[0][1] == (rebuilt, rebuilt[0])


def test_a_plain_value_reads_like_python() -> None:
    world = SmallWorld()
    assert world.region([1, "a", {"k": None}, 2.5, (3, 4)]).text == (
        "def region(L, C, S):\n"
        "    list = []\n"
        "    dict = {}\n"
        "    dict.update({'k': None})\n"
        "    list.extend([1, 'a', dict, float_2_5, tuple])\n"
        "    return list\n"
    )


def test_an_integer_too_long_for_text() -> None:
    assert SmallWorld().rebuilt((10**5000, [])) == (10**5000, [])


def test_each_call_makes_new_objects() -> None:
    region = SmallWorld().region([[]])
    one, other = region.run({}, {}, ()), region.run({}, {}, ())
    assert one == other == [[]]
    assert one is not other
    assert one[0] is not other[0]


@pytest.mark.parametrize(
    "value",
    [
        torch.float32,
        torch.device("cpu"),
        torch.strided,
        Colour.RED,
        Box,
        math,
        len,
        print,
        list.append,
        NULL,
        NotImplemented,
        list[int],
        int | str,
        torch.nn.functional.relu,
        parts,
        dict.fromkeys,
    ],
)
def test_a_global_object_is_itself(value: Any) -> None:
    assert SmallWorld().rebuilt(value) is value


def test_tensors_are_inputs_or_outputs() -> None:
    world = SmallWorld()
    real, new = torch.ones(2), torch.zeros(3)
    fake = world.input("x", real)
    rebuilt = world.rebuilt([fake, new, fake, new])
    assert rebuilt[0] is rebuilt[2] is real
    assert rebuilt[1] is rebuilt[3]
    assert torch.equal(rebuilt[1], new)


@pytest.mark.parametrize(
    "value",
    [
        collections.deque([1, 2], 5),
        collections.defaultdict(list, a=[1]),
        collections.Counter("aab"),
        collections.ChainMap({"a": 1}, {"b": 2}),
        collections.OrderedDict(b=1, a=2),
        collections.UserList([1]),
        {1, "a", None},
        frozenset([1, (2,)]),
        set(),
        bytearray(b"ab"),
        torch.Size([2, 3]),
        slice([1], None, 2),
        SimpleNamespace(a=[1]),
        Point(1, [2]),
    ],
)
def test_containers_of_the_library(value: Any) -> None:
    rebuilt = SmallWorld().rebuilt(value)
    assert type(rebuilt) is type(value)
    assert rebuilt == value
    if isinstance(value, collections.deque):
        assert rebuilt.maxlen == value.maxlen
    if isinstance(value, collections.defaultdict):
        assert rebuilt.default_factory is list


def test_a_result_of_torch_with_names() -> None:
    value = torch.max(torch.tensor([[1, 2]]), dim=1)
    rebuilt = SmallWorld().rebuilt(value)
    assert type(rebuilt) is type(value)
    assert rebuilt.indices.item() == 1


def test_a_function_keeps_cells_defaults_and_attributes() -> None:
    def outer() -> Any:
        count = [0]

        def step(by: int = 1, /, *, note: str = "n") -> Any:
            """Doc."""
            count[0] += by
            return step, note

        def read() -> int:
            return count[0]

        def empty() -> Any:
            return later

        if count[0]:
            later = 1

        step.extra = count  # type: ignore[attr-defined]
        step.__qualname__ = "renamed"
        return step, read, empty

    functions = outer()
    world = SmallWorld()
    for function in functions:
        world.made(function)
    step, read, empty = world.rebuilt(functions)
    assert step is not functions[0]
    assert step(4) == (step, "n")
    assert (read(), functions[1]()) == (4, 0)
    assert step.extra == [4]
    assert (step.__qualname__, step.__doc__, step.__module__) == ("renamed", "Doc.", __name__)
    assert step.__annotations__ == functions[0].__annotations__
    assert step.__globals__ is globals()
    with pytest.raises(NameError):
        empty()


def test_a_function_without_cells_is_another_function() -> None:
    world = SmallWorld()
    plain = world.made(lambda: plain)
    rebuilt = world.rebuilt(plain)
    assert rebuilt is not plain
    assert rebuilt.__code__ is plain.__code__


def test_methods_are_bound_to_what_is_rebuilt() -> None:
    world = SmallWorld()
    items: list[int] = []
    box = world.made(Slotted(1))
    append, bound, add, rebuilt_items, rebuilt_box = world.rebuilt(
        (items.append, Slotted.__init__.__get__(box), items.__iadd__, items, box)
    )
    append(3)
    add([4])
    assert rebuilt_items == [3, 4]
    bound(7)
    assert (rebuilt_box.x, box.x) == (7, 1)


def test_fake_tensors_are_only_ever_compared_by_identity() -> None:
    world = SmallWorld()
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2))
        value = world.made(Slotted(fake, {fake: (fake.add, [fake * 2])}))
        world.shadow("items", [fake], ShadowKind.LIST).append(value)
        rebuilt = world.rebuilt({"value": value, "limit": slice(fake, None)})
    assert rebuilt["limit"].start is fake, "it was in an old list"
    assert rebuilt["value"] is world.locals["items"][1]
    assert rebuilt["value"].x is fake


def test_a_method_of_a_tensor() -> None:
    tensor = torch.ones(2)
    assert SmallWorld().rebuilt(tensor.add)(1).tolist() == [2, 2]


def test_wrappers_of_functions() -> None:
    part = functools.partial(operator.add, [1], key={})
    functools.update_wrapper(part, parts)
    world = SmallWorld()
    rebuilt = world.rebuilt(
        [
            part,
            staticmethod(len),
            classmethod(len),
            property(len, doc="d"),
            operator.itemgetter(1, [2]),
            operator.methodcaller("index", 5, start=1),
            super(Mixed, world.old("it", Mixed())),
        ]
    )
    assert (rebuilt[0].func, rebuilt[0].args, rebuilt[0].keywords) == (operator.add, ([1],), {"key": {}})
    assert rebuilt[0].__wrapped__ is parts
    assert rebuilt[1].__func__ is rebuilt[2].__func__ is rebuilt[3].fget is len
    assert rebuilt[3].__doc__ == "d"
    assert rebuilt[4].__reduce__()[1] == (1, [2])
    assert rebuilt[6].__self__ is world.locals["it"]


def test_errors_keep_arguments_links_and_notes() -> None:
    class Mine(ValueError):
        def __init__(self, code: int) -> None:
            super().__init__(f"code {code}")
            self.code = code

    world = SmallWorld()
    error = world.made(Mine(3))
    error.add_note("note")
    error.__cause__ = KeyError("k")
    error.__context__ = StopIteration([5])
    rebuilt = world.rebuilt(error)
    assert type(rebuilt) is Mine
    assert (rebuilt.args, rebuilt.code, rebuilt.__notes__) == (("code 3",), 3, ["note"])
    assert rebuilt.__cause__.args == ("k",)
    assert rebuilt.__context__.value == [5]
    assert rebuilt.__suppress_context__ is True


@pytest.mark.parametrize(
    "error",
    [
        OSError(2, "no", "file"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
        AttributeError("a", name="n", obj=[1]),
        ExceptionGroup("g", [ValueError(1)]),
        SystemExit(3),
        ImportError("i", name="m"),
        KeyError(),
    ],
)
def test_builtin_errors(error: BaseException) -> None:
    rebuilt = SmallWorld().rebuilt(error)
    assert type(rebuilt) is type(error)
    assert repr(rebuilt) == repr(error)
    assert str(rebuilt) == str(error)
    for name in ("filename", "errno", "name", "obj", "code"):
        assert getattr(rebuilt, name, None) == getattr(error, name, None)


def test_subclasses_of_immutable_types() -> None:
    world = SmallWorld()
    values = [Text("a"), Number(5), Pair([1, 2])]
    for value in values:
        world.made(value)
        value.extra = values
    rebuilt = world.rebuilt(values)
    assert [type(it) for it in rebuilt] == [Text, Number, Pair]
    assert rebuilt == values
    assert all(it.extra is rebuilt for it in rebuilt)


def test_a_module_made_while_tracing() -> None:
    world = SmallWorld()
    linear = world.made(torch.nn.Linear(2, 3))
    block = world.made(torch.nn.Sequential(linear, linear))
    rebuilt = world.rebuilt(block)
    assert rebuilt[0] is rebuilt[1]
    assert torch.equal(rebuilt[0](torch.ones(1, 2)), linear(torch.ones(1, 2)))


def test_a_context_manager_of_torch() -> None:
    world = SmallWorld()
    with world.rebuilt(world.made(torch.no_grad())):
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_the_result_of_a_transformers_model() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    world = SmallWorld()
    logits = torch.ones(2)
    value = world.made(outputs.CausalLMOutputWithPast(logits=logits, hidden_states=(logits, logits)))
    rebuilt = world.rebuilt(value)
    assert type(rebuilt) is type(value)
    assert list(rebuilt) == ["logits", "hidden_states"]
    assert rebuilt.logits is rebuilt["logits"] is rebuilt.hidden_states[0] is rebuilt[0]
    assert rebuilt.loss is None
    assert len(rebuilt.to_tuple()) == 2


def test_a_cache_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    world = SmallWorld()
    cache = world.made(transformers.DynamicCache())
    keys = torch.ones(1, 2, 3, 4)
    cache.update(keys, keys, 0)
    for layer in cache.layers:
        world.made(layer)
    rebuilt = world.rebuilt(cache)
    assert rebuilt.get_seq_length() == 3
    rebuilt.update(keys, keys, 0)
    assert (rebuilt.get_seq_length(), cache.get_seq_length()) == (6, 3)


def generator() -> Any:
    yield 1


@pytest.mark.parametrize("value", [generator(), threading.Lock(), Box(), memoryview(b""), threading.local()])
def test_what_cannot_be_made_again_says_its_type(value: Any) -> None:
    with pytest.raises(CannotRebuild, match=type(value).__name__):
        SmallWorld().rebuilt([value])


def test_a_class_made_while_tracing_cannot_be_made_again() -> None:
    world = SmallWorld()
    with pytest.raises(CannotRebuild, match="Local"):
        world.rebuilt(world.made(type("Local", (), {})))


def test_state_in_c_is_not_guessed() -> None:
    class Counting(threading.local):
        pass

    world = SmallWorld()
    with pytest.raises(CannotRebuild, match="Counting"):
        world.rebuilt(world.made(Counting()))


def test_an_old_object_that_was_only_moved_is_itself() -> None:
    world = SmallWorld()
    box, items = Box(), [1]
    world.shadow("state", {"box": box, "items": items}, ShadowKind.DICT)
    rebuilt = world.rebuilt([box, items])
    assert rebuilt[0] is box
    assert rebuilt[1] is items


def advanced(iterator: Any, steps: int = 1) -> Any:
    for _ in range(steps):
        next(iterator)
    return iterator


ORDERED = collections.OrderedDict(a=1, b=2, c=3)
ITERATORS = {
    "list": lambda: advanced(iter([1, 2, 3])),
    "list, used up": lambda: [*(it := iter([1]))] and it,
    "tuple": lambda: advanced(iter((1, 2))),
    "str": lambda: advanced(iter("aé")),
    "ascii": lambda: advanced(iter("abc")),
    "bytes": lambda: advanced(iter(b"ab")),
    "range": lambda: advanced(iter(range(5)), 2),
    "long range": lambda: advanced(iter(range(2**70, 2**70 + 3))),
    "reversed list": lambda: advanced(reversed([1, 2, 3])),
    "reversed tuple": lambda: advanced(reversed((1, 2, 3))),
    "set": lambda: advanced(iter({1, 2, 3})),
    "keys": lambda: advanced(iter({"a": 1, "b": 2})),
    "values": lambda: advanced(iter({"a": 1, "b": 2}.values())),
    "items": lambda: advanced(iter({"a": 1, "b": 2, "c": 3}.items()), 2),
    "items, used up": lambda: [*(it := iter({1: 2}.items()))] and it,
    "reversed items": lambda: advanced(reversed({"a": 1, "b": 2}.items())),
    "ordered": lambda: advanced(iter(ORDERED.items())),
    "deque": lambda: advanced(iter(collections.deque([1, 2]))),
    "enumerate": lambda: advanced(enumerate(["a", "b"], 5)),
    "zip": lambda: advanced(zip([1, 2], (3, 4), strict=True)),
    "map": lambda: advanced(map(operator.neg, [1, 2])),
    "filter": lambda: advanced(filter(None, [1, 0, 2])),
    "callable": lambda: iter(itertools.count().__next__, 3),
    "chain": lambda: advanced(itertools.chain([1, 2], "ab")),
    "cycle": lambda: itertools.islice(advanced(itertools.cycle([1, 2, 3])), 7),
    "islice": lambda: advanced(itertools.islice(range(9), 1, 8, 2)),
    "product": lambda: advanced(itertools.product([1, 2], repeat=2)),
    "accumulate": lambda: advanced(itertools.accumulate([1, 2, 3], initial=5)),
    "accumulate, not begun": lambda: itertools.accumulate([1, 2, 3], initial=5),
    "combinations": lambda: advanced(itertools.combinations([1, 2, 3], 2)),
    "permutations": lambda: advanced(itertools.permutations([1, 2, 3])),
    "repeat": lambda: advanced(itertools.repeat([], 4)),
    "takewhile": lambda: advanced(itertools.takewhile(bool, [1, 2, 0])),
    "dropwhile": lambda: advanced(itertools.dropwhile(bool, [1, 0, 2, 3])),
    "starmap": lambda: advanced(itertools.starmap(pow, [(1, 2), (3, 4)])),
    "zip_longest": lambda: advanced(itertools.zip_longest([1], [2, 3], fillvalue=9)),
    "compress": lambda: advanced(itertools.compress("abc", [1, 0, 1])),
    "groupby": lambda: map(operator.itemgetter(0), advanced(itertools.groupby([1, 1, 2, 3]))),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ITERATORS)
def test_an_iterator_goes_on_where_it_was(kind: str) -> None:
    iterator = ITERATORS[kind]()
    region = SmallWorld().region([iterator, iterator])
    rebuilt, again = region.run({}, {}, ())
    assert rebuilt is again
    assert list(rebuilt) == list(ITERATORS[kind]())
    assert list(region.run({}, {}, ())[0]) == list(iterator), "the traced one was left where it was"


def test_an_iterator_of_a_dict_sees_later_changes() -> None:
    table = {"a": 1, "b": 2}
    values, again = SmallWorld().rebuilt((advanced(iter(table.values())), table))
    again["b"] = 5
    assert next(values) == 5


def test_views_of_dicts_are_live() -> None:
    world = SmallWorld()
    table = world.old("table", {"a": 1})
    views = world.rebuilt([table.keys(), table.values(), table.items(), collections.OrderedDict(a=1).keys()])
    table["b"] = 2
    assert [list(view) for view in views] == [["a", "b"], [1, 2], [("a", 1), ("b", 2)], ["a"]]


def test_iterators_without_a_known_state_are_refused() -> None:
    for iterator in (itertools.pairwise([1, 2]), itertools.tee([1])[0]):
        with pytest.raises(CannotRebuild):
            SmallWorld().rebuilt(iterator)


def test_an_iterator_in_the_list_that_it_is_of_is_refused() -> None:
    items: list[Any] = [1]
    value = (iter(items),)
    items.append(value)
    with pytest.raises(CannotRebuild, match="contains it"):
        SmallWorld().rebuilt(value)


def test_deep_nesting_is_refused() -> None:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(CannotRebuild, match="deep"):
        SmallWorld().rebuilt(value)


def test_a_dict_that_grew_under_its_iterator_is_refused() -> None:
    table = {"a": 1}
    iterator = iter(table)
    table["b"] = 2
    with pytest.raises(CannotRebuild, match="changed size"):
        SmallWorld().rebuilt(iterator)
