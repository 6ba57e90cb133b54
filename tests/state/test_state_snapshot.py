"""What a call can reach: found, cloned, and put back in place whatever was done to it."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchrepro.state.snapshot import State, UndoWrites, describe_state, in_state

SHARED = torch.ones(4)
TOTAL = 0


class Thing:
    made = 0

    def __init__(self, value: Any) -> None:
        self.value = value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


leaves = st.one_of(
    st.integers(-5, 5),
    st.text("ab", max_size=2),
    st.none(),
    st.builds(lambda n: torch.arange(float(n)), st.integers(0, 3)),
    st.builds(lambda: SHARED[:2]),
    st.builds(lambda n: np.arange(n), st.integers(0, 3)),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Thing, inner),
        st.builds(Slotted, inner),
        st.builds(lambda items: deque(items, maxlen=4), st.lists(inner, max_size=3)),
        st.builds(lambda item: functools.partial(print, item), inner),
        st.sets(st.integers(0, 3)),
    ),
    max_leaves=8,
)


def closed_over(value: Any) -> Callable[..., Any]:
    def function(*args: Any) -> Any:
        return value, args

    return function


def vandalise(value: Any, seen: set[int]) -> None:
    """Change everything that can be changed."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        value.add_(100)
    elif isinstance(value, np.ndarray):
        value += 100
    elif isinstance(value, (list, deque)):
        for item in list(value):
            vandalise(item, seen)
        value.append("new")
    elif isinstance(value, dict):
        for item in list(value.values()):
            vandalise(item, seen)
        value.clear()
        value["new"] = value
    elif isinstance(value, set):
        value.add("new")
    elif isinstance(value, tuple):
        for item in value:
            vandalise(item, seen)
    elif isinstance(value, functools.partial):
        vandalise(value.args, seen)
    elif isinstance(value, (Thing, Slotted)):
        vandalise(value.value, seen)
        value.value = "new"


@given(values, values)
def test_whatever_a_run_on_clones_does_is_undone(first: Any, second: Any) -> None:
    function, args = closed_over(first), (second,)
    live = State.of(function, args, {})
    before = describe_state(function, args, {})
    kept = {path: tensor.clone() for path, tensor in before.tensors.items()}
    clones = live.cloned()
    with in_state(clones, live):
        vandalise(function(*clones.args), set())
    after = describe_state(function, args, {})
    assert {path: repr(value) for path, value in after.data.items()} == {
        path: repr(value) for path, value in before.data.items()
    }
    assert after.tensors.keys() == before.tensors.keys()
    assert all(after.tensors[path] is before.tensors[path] for path in kept)
    assert all(torch.equal(after.tensors[path], tensor) for path, tensor in kept.items())


@given(values)
def test_clones_alias_one_another_as_the_originals_do(value: Any) -> None:
    function = closed_over([value, SHARED, SHARED.view(2, 2)])
    live = State.of(function, (), {})
    clones = live.cloned()
    assert not live.storages() & clones.storages()
    assert len(live.storages()) == len(clones.storages())
    with in_state(clones, live):
        whole, seen = function()[0][1:]
        whole.add_(1)
        assert seen.tolist() == whole.view(2, 2).tolist()
    assert SHARED.tolist() == [1, 1, 1, 1]


def test_globals_classes_and_cells_are_found_and_put_back() -> None:
    count = 0

    def function() -> None:
        nonlocal count
        global TOTAL, NEW
        count += 1
        TOTAL += 1
        NEW = 1
        Thing.made += 1

    live = State.of(function, (), {})
    with in_state(live, live):
        function()
        assert (count, TOTAL, Thing.made) == (1, 1, 1)
    assert (count, TOTAL, Thing.made) == (0, 0, 0)
    assert "NEW" not in globals()


def test_an_iterator_is_reported_as_out_of_reach() -> None:
    found = State.of(closed_over([iter([1, 2])]), (), {})
    assert found.opaque == ("closure.value[0]",)


def test_a_write_to_an_unknown_tensor_is_undone_with_its_version() -> None:
    known, unknown = torch.zeros(2), torch.zeros(2)
    version = unknown._version
    with UndoWrites({known.untyped_storage()._cdata}) as writes:
        known.add_(1)
        made = torch.zeros(2)
        made.add_(1)
        assert not writes.out_of_sight
        unknown.view(2).add_(1)
    writes.undo()
    assert writes.out_of_sight
    assert (known.tolist(), made.tolist(), unknown.tolist()) == ([1, 1], [1, 1], [0, 0])
    assert unknown._version == version
