"""Changes of shadows happen to the old objects: all of them, in order, and nothing that did not change."""

from __future__ import annotations

import collections
import dataclasses
from types import CellType, ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rebuild_world import SmallWorld

from torchrepro.frontend.codegen.objects import CannotRebuild, ShadowKind

VALUES = st.sampled_from([0, 1, True, 1.0, 0.0, -0.0, "a", None, (1, 2), "']; raise SystemExit #"])

LIST_STEPS = {
    "append": lambda it, _, value: it.append(value),
    "insert": lambda it, at, value: it.insert(at, value),
    "set": lambda it, at, value: it.__setitem__(at % len(it), value) if it else None,
    "pop": lambda it, at, _: it.pop(at % len(it)) if it else None,
    "reverse": lambda it, *_: it.reverse(),
    "clear": lambda it, *_: it.clear(),
    "double": lambda it, *_: it.__imul__(2),
}
DEQUE_STEPS = LIST_STEPS | {
    "insert": lambda it, _, value: it.appendleft(value),
    "pop": lambda it, *_: it.popleft() if it else None,
    "double": lambda it, at, _: it.rotate(at),
}
DICT_STEPS = {
    "set": lambda it, at, value: it.__setitem__(f"k{at}", value),
    "delete": lambda it, at, _: it.pop(f"k{at}", None),
    "move": lambda it, at, value: (it.pop(f"k{at}", None), it.__setitem__(f"k{at}", value)),
    "popitem": lambda it, *_: it.popitem() if it else None,
    "clear": lambda it, *_: it.clear(),
}
SET_STEPS = {
    "add": lambda it, _, value: it.add(value),
    "discard": lambda it, _, value: it.discard(value),
    "clear": lambda it, *_: it.clear(),
}


class LoudList(list):  # type: ignore[type-arg]
    def __setitem__(self, *_: Any) -> None:
        raise AssertionError("ran")

    extend = clear = __iter__ = __setitem__  # type: ignore[assignment]


class LoudDict(collections.OrderedDict):  # type: ignore[type-arg]
    def __setitem__(self, *_: Any) -> None:
        raise AssertionError("ran")

    __delitem__ = items = keys = __setitem__  # type: ignore[assignment]


KINDS: dict[str, tuple[ShadowKind, Any, Any]] = {
    "list": (ShadowKind.LIST, lambda: [1, "a", None], LIST_STEPS),
    "deque": (ShadowKind.DEQUE, lambda: collections.deque([1, "a", None], 9), DEQUE_STEPS),
    "dict": (ShadowKind.DICT, lambda: {"k0": 1, "k1": "a", "k2": 0.0}, DICT_STEPS),
    "ordered": (ShadowKind.DICT, lambda: collections.OrderedDict(k0=1, k1="a", k2=0.0), DICT_STEPS),
    "default": (ShadowKind.DICT, lambda: collections.defaultdict(list, k0=1, k1="a", k2=0.0), DICT_STEPS),
    "set": (ShadowKind.SET, lambda: {1, "a"}, SET_STEPS),
}


def shown(value: Any) -> str:
    return repr(sorted(value, key=repr) if isinstance(value, set) else value)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_changes_happen_to_the_old_container(kind: str, data: st.DataObject) -> None:
    shadow_kind, make, steps = KINDS[kind]
    world = SmallWorld()
    original, expected = make(), make()
    stand_in = world.shadow("it", original, shadow_kind)
    for name in data.draw(st.lists(st.sampled_from(sorted(steps)), max_size=6)):
        at, value = data.draw(st.integers(0, 4)), data.draw(VALUES)
        for target in (stand_in, expected):
            steps[name](target, at, value)
    assert shown(original) == shown(make()), "tracing changes no old object"
    region = world.region(stand_in)
    assert region.run(world.locals, {}, ()) is original
    assert shown(original) == shown(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_written_where_nothing_changed(kind: str) -> None:
    shadow_kind, make, _ = KINDS[kind]
    world = SmallWorld()
    world.shadow("it", make(), shadow_kind)
    assert world.region(None).text == "def region(L, C, S):\n    return None\n"


def test_what_was_appended_is_all_that_is_written() -> None:
    world = SmallWorld()
    world.shadow("log", [{}, {}], ShadowKind.LIST).append(torch.ones(1))
    assert world.region(None).text.splitlines()[1:] == [
        "    log = L['log']",
        "    out = graph()",
        "    list.extend(log, [out[0]])",
        "    return None",
    ]


def test_overrides_of_subclasses_do_not_run() -> None:
    world = SmallWorld()
    items, table = LoudList([1, 2, 3]), LoudDict()
    dict.update(table, {})
    collections.OrderedDict.__setitem__(table, "a", 1)
    world.shadow("items", items, ShadowKind.LIST)[:] = [3, 4]
    changed = world.shadow("table", table, ShadowKind.DICT)
    changed["b"] = 2
    del changed["a"]
    world.rebuilt(None)
    assert list(list.__iter__(items)) == [3, 4]
    assert list(collections.OrderedDict.items(table)) == [("b", 2)]


def test_tensors_and_old_objects_are_moved_not_copied() -> None:
    world = SmallWorld()
    real, inner = torch.ones(2), [1]
    fake = world.input("x", real)
    items = [real, inner]
    stand_in = world.shadow("items", items, ShadowKind.LIST)
    assert stand_in[0] is fake
    stand_in.reverse()
    stand_in.append(stand_in)
    world.rebuilt(None)
    assert items[0] is inner
    assert items[1] is real
    assert items[2] is items


def test_two_old_objects_may_swap_contents() -> None:
    world = SmallWorld()
    one, other = {"v": [1]}, {"v": [2]}
    first, second = one["v"], other["v"]
    left, right = world.shadow("a", one, ShadowKind.DICT), world.shadow("b", other, ShadowKind.DICT)
    left["v"], right["v"] = right["v"], left["v"]
    world.rebuilt(None)
    assert one["v"] is second
    assert other["v"] is first


def test_keys_that_are_objects() -> None:
    world = SmallWorld()
    key, real = object(), torch.ones(1)
    fake = world.input("x", real)
    table = {key: 1, real: 2, "c": 3}
    changed = world.shadow("table", table, ShadowKind.DICT)
    changed[key], changed[fake] = 5, 6
    changed["c"] = changed.pop("c")
    del changed[key]
    world.rebuilt(None)
    assert list(table) == [real, "c"]
    assert table[real] == 6


class Guarded:
    """Refuses what would run if effects went through the class."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("ran")

    __delattr__ = __setattr__  # type: ignore[assignment]


class Custom(Guarded):
    def __getattribute__(self, name: str) -> Any:
        raise AssertionError("ran")


@pytest.mark.parametrize("kind", [Guarded, Custom])
def test_attributes_are_set_past_the_class(kind: type) -> None:
    value = kind()
    held = object.__getattribute__(value, "__dict__")
    held.update(a=1, gone=2, c=3)
    world = SmallWorld()
    changed = world.shadow("it", value, ShadowKind.ATTRIBUTES)
    changed["a"] = [5]
    changed["new"] = "n"
    changed["it's"] = None
    del changed["gone"]
    world.rebuilt(None)
    assert held == {"a": [5], "c": 3, "new": "n", "it's": None}


class Slotted:
    __slots__ = ("__private", "a", "b", "c")

    def __init__(self) -> None:
        self.__private, self.a, self.b = 1, 2, 3

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, "b"):
            raise AssertionError("ran")
        object.__setattr__(self, name, value)


def test_slots_are_set_and_deleted() -> None:
    world = SmallWorld()
    value = Slotted()
    changed = world.shadow("it", value, ShadowKind.SLOTS)
    changed["a"] = [7]
    changed["c"] = 8
    changed["_Slotted__private"] = 9
    del changed["b"]
    world.rebuilt(None)
    assert (value.a, value.c, value._Slotted__private) == ([7], 8, 9)  # type: ignore[attr-defined]
    assert not hasattr(value, "b")


def test_attributes_of_a_module_and_of_a_class() -> None:
    class Settings:
        level = 1
        gone = 2

    world = SmallWorld()
    module = ModuleType("settings")
    world.shadow("module", module, ShadowKind.ATTRIBUTES)["level"] = 3
    changed = world.shadow("cls", Settings, ShadowKind.ATTRIBUTES)
    changed["level"] = 4
    del changed["gone"]
    world.rebuilt(None)
    assert (module.level, Settings.level) == (3, 4)
    assert not hasattr(Settings, "gone")


def test_what_came_beside_the_trace_is_left_alone() -> None:
    world = SmallWorld()
    scope: dict[str, Any] = {"a": 1}
    changed = world.shadow("scope", scope, ShadowKind.DICT)
    world.shadows[-1] = dataclasses.replace(world.shadows[-1], before=dict(scope))
    scope["lazily imported"] = 2
    changed["b"] = 3
    world.rebuilt(None)
    assert scope == {"a": 1, "lazily imported": 2, "b": 3}


def test_cells() -> None:
    world = SmallWorld()
    full, empty, emptied, same = CellType(1), CellType(), CellType(2), CellType([3])
    contents = same.cell_contents
    world.shadow("full", full, ShadowKind.CELL).cell_contents = [5]
    world.shadow("empty", empty, ShadowKind.CELL).cell_contents = 6
    del world.shadow("emptied", emptied, ShadowKind.CELL).cell_contents
    world.shadow("same", same, ShadowKind.CELL)
    region = world.region(None)
    assert "same" not in region.text
    region.run(world.locals, {}, ())
    assert (full.cell_contents, empty.cell_contents) == ([5], 6)
    assert same.cell_contents is contents
    with pytest.raises(ValueError, match="empty"):
        _ = emptied.cell_contents


def test_a_default_factory() -> None:
    world = SmallWorld()
    table = collections.defaultdict(list)
    world.shadow("table", table, ShadowKind.DICT).default_factory = dict
    world.rebuilt(None)
    assert table.default_factory is dict


def test_the_tables_of_a_module() -> None:
    layer = torch.nn.BatchNorm1d(2)
    world = SmallWorld()
    fake = world.input("mean", layer.running_mean)
    changed = world.shadow("buffers", layer._buffers, ShadowKind.DICT)
    assert changed["running_mean"] is fake
    changed["running_mean"] = torch.full((2,), 7.0)
    variance = layer.running_var
    world.rebuilt(None)
    assert layer.running_mean.tolist() == [7, 7]
    assert layer.running_var is variance


def test_an_iterator_is_of_what_the_old_object_has_become() -> None:
    world = SmallWorld()
    items, table = [1], {"a": 1}
    longer, wider = (
        world.shadow("items", items, ShadowKind.LIST),
        world.shadow("table", table, ShadowKind.DICT),
    )
    longer += [2, 3]
    wider["b"] = 2
    iterators = [iter(longer), iter(wider.items())]
    next(iterators[0]), next(iterators[0]), next(iterators[1])
    rebuilt = world.rebuilt(iterators)
    items.append(4)
    table["b"] = 5
    assert [list(it) for it in rebuilt] == [[3, 4], [("b", 5)]]


def test_an_iterator_that_the_old_object_will_contain_is_refused() -> None:
    world = SmallWorld()
    changed = world.shadow("items", [1], ShadowKind.LIST)
    changed.append(iter(changed))
    with pytest.raises(CannotRebuild, match="list"):
        world.region(None)
