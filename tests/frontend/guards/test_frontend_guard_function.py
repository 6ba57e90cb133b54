"""The generated guard function: right for any constant, safe with any name and object, in good order."""

from __future__ import annotations

import gc
import linecache
import math
import traceback
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from torchrepro.frontend.codegen.writer import Kept
from torchrepro.frontend.guards.function import GuardFunction
from torchrepro.frontend.guards.kinds import (
    AmbientFacts,
    AmbientIs,
    Answers,
    Contains,
    Guard,
    Guards,
    HasKey,
    Is,
    Length,
    NoHooks,
    ObjectCount,
    SharedStorage,
    TensorFacts,
    TensorLike,
    TypeIs,
    Unbound,
    has_instance_value,
)
from torchrepro.frontend.source import Attribute, FrameState, Item, KeyOf, Local, instance_value

X = Local("x")

KEPT = Kept()
TORCH = KEPT.hold(torch, "torch")


def compiled(*guards: Guard, kept: Kept | None = None) -> GuardFunction:
    return GuardFunction.of(dict.fromkeys(guards), kept or KEPT)


def locals_of(**values: Any) -> FrameState:
    return FrameState(values, {})


# Constants

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([0.0, -0.0, 1.0, math.nan, -math.nan, math.inf, 2.0]),
    st.sampled_from([0j, complex(0, -0.0), complex(-0.0, 0), 1 + 0j, complex(math.nan, 0)]),
    st.sampled_from(["", "1", "a'\"\n"]),
    st.sampled_from([b"", b"1"]),
    st.sampled_from([torch.float32, torch.int64, torch.strided, torch.device("cpu")]),
)
CONSTANTS = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2).map(tuple),
        st.frozensets(SCALARS, max_size=2),
        st.builds(slice, inner, inner, inner),
    ),
    max_leaves=4,
)


def alike(one: Any, other: Any) -> bool:
    """The definition, by cases: same type, and equal all through."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return (one != one and other != other) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    if isinstance(one, complex):
        return alike(one.real, other.real) and alike(one.imag, other.imag)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, frozenset):
        matched = all(any(alike(a, b) for b in other) for a in one)
        return len(one) == len(other) and matched and all(any(alike(a, b) for a in one) for b in other)
    if isinstance(one, slice):
        return alike((one.start, one.stop, one.step), (other.start, other.stop, other.step))
    return bool(one == other)


@given(CONSTANTS, CONSTANTS)
@example((1, True), (1, 1))
@example(math.nan, float("nan"))
@example((0.0,), (-0.0,))
@example(1, True)
def test_a_constant_guard_holds_if_and_only_if_type_and_value_are_the_same(good: Any, found: Any) -> None:
    guards = compiled(Is(X, good))
    assert guards.holds(locals_of(x=good))
    assert guards.holds(locals_of(x=found)) == alike(good, found)
    assert (guards.miss(locals_of(x=found)) is None) == alike(good, found)


@given(st.lists(SCALARS, max_size=3), st.lists(SCALARS, max_size=3))
def test_a_guard_on_keys_holds_if_and_only_if_they_are_the_same_in_order(
    good: list[Any], found: list[Any]
) -> None:
    expected, actual = dict.fromkeys(good), dict.fromkeys(found)
    guards = compiled(Contains(X, tuple(expected)))
    assert guards.holds(locals_of(x=expected))
    assert guards.holds(locals_of(x=actual)) == alike(tuple(expected), tuple(actual))


@given(st.integers(), st.integers())
def test_integers_of_any_size(good: int, found: int) -> None:
    assert compiled(Is(X, good)).holds(locals_of(x=found)) == (good == found)


# Which guards are the same


def test_guards_that_say_the_same_are_kept_once_and_in_order() -> None:
    guards = Guards()
    facts = TensorFacts.of(torch.ones(2))
    said: list[Guard] = [
        TypeIs(X, int),
        Is(X, 1),
        Is(X, True),
        Is(X, 1.0),
        Is(X, 0.0),
        Is(X, -0.0),
        Is(X, (1, slice(2))),
        TensorLike(X, facts),
        ObjectCount(X, 2, others=(Local("y"),)),
    ]
    for guard in [
        *said,
        *said,
        TypeIs(X, int),
        Is(X, (1, slice(2))),
        TensorLike(X, TensorFacts.of(torch.ones(2))),
    ]:
        guards.add(guard)
    assert list(guards) == said
    assert len(guards) == len(said)


def test_guards_on_objects_do_not_compare_them() -> None:
    guards = Guards()
    for thing in (torch.ones(2), torch.ones(2), Hostile()):
        guards.add(Is(X, thing))
        guards.add(Is(X, thing))
    assert len(guards) == 3


# Order


def test_an_object_is_checked_before_what_is_read_from_it() -> None:
    read: list[str] = []

    class Telltale:
        @property
        def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
            read.append("dict")
            return {"n": 1}

    guards = compiled(Is(instance_value(X, "n"), 1), TypeIs(X, int))
    assert not guards.holds(locals_of(x=Telltale()))
    assert read == []


def test_what_is_read_from_a_tensor_comes_after_the_tensor() -> None:
    tensors = {"x": torch.ones(2, requires_grad=True), "y": torch.ones(3)}
    guards = compiled(
        AmbientIs(TORCH, AmbientFacts.now()),
        Is(Attribute(X, "grad"), None),
        *(TensorLike(Local(name), TensorFacts.of(tensor)) for name, tensor in tensors.items()),
    )
    assert guards.text.index(".check(x, y)") < guards.text.index("x.grad")
    assert guards.holds(FrameState(tensors, {}))
    assert guards.miss(locals_of(x=object(), y=tensors["y"])) == "argument x: type is object, was Tensor"


def test_cheap_checks_come_first() -> None:
    guards = compiled(TensorLike(X, TensorFacts.of(torch.ones(2))), Length(Local("l"), 1), Is(Local("n"), 1))
    assert guards.miss(FrameState({"n": 2, "l": [], "x": None}, {})) == "argument n: is 2, was 1"
    assert guards.miss(FrameState({"n": 1, "l": [], "x": None}, {})) == "argument l: length is 0, was 1"


def test_a_source_is_read_once() -> None:
    guards = compiled(TypeIs(X, list), Length(X, 2), Is(Item.at(X, 0), 1), Is(Item.at(X, 1), 2))
    assert guards.text.count("L['x']") == 1
    assert guards.holds(locals_of(x=[1, 2]))


def test_no_guards_hold_always() -> None:
    assert compiled().holds(locals_of())
    assert compiled().miss(locals_of()) is None


# Hostile objects and names


class Hostile:
    """Whatever it is asked, it answers with garbage or an error."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __len__(self) -> int:
        return -1

    def __iter__(self) -> Any:
        raise RuntimeError("iter")

    def __contains__(self, item: object) -> bool:
        raise RuntimeError("contains")

    def __getitem__(self, key: object) -> Any:
        raise RuntimeError("getitem")

    def __bool__(self) -> bool:
        raise RuntimeError("bool")

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("class")


class Liar(Hostile):
    """Equal to everything, has everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        return Liar()

    def __iter__(self) -> Any:
        return iter([self])


class LyingString(str):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


TENSOR = torch.ones(2)
ON_VALUES: list[Guard] = [
    Is(X, 1),
    *(
        Is(X, value)
        for value in (1, 1.5, 0.0, "a", None, (1,), frozenset({1}), slice(1), torch.device("cpu"))
    ),
    TypeIs(X, int),
    Contains(X, ("a",)),
    Contains(X, frozenset({1})),
    TensorLike(X, TensorFacts.of(TENSOR)),
    TensorLike(X, TensorFacts.of(TENSOR.to_sparse())),
]
ON_PARTS: list[Guard] = [
    Length(X, 1),
    HasKey(X, "a"),
    HasKey(X, "a", present=False),
    has_instance_value(X, "a"),
    has_instance_value(X, "a", present=False),
    HasKey(instance_value(X, "_parameters"), "a", present=False),
    NoHooks(X),
    SharedStorage(X, ((0, 1), (0, 0)), others=(Local("y"),)),
    Is(Item.at(X, 0), 1),
    Is(KeyOf(X, 0), 1),
    Is(Attribute(X, "name"), 1),
    Is(instance_value(X, "name"), 1),
    Is(Item.at(instance_value(X, "_buffers"), "name"), None),
]


@pytest.mark.parametrize("guard", [*ON_VALUES, *ON_PARTS], ids=lambda guard: type(guard).__name__)
@pytest.mark.parametrize("kind", [Hostile, Liar])
def test_hostile_objects_are_a_miss_and_never_an_error(guard: Guard, kind: type) -> None:
    guards = compiled(guard)
    state = locals_of(x=kind(), y=kind())
    held = guards.holds(state)
    reason = guards.miss(state)
    assert held is (reason is None)
    # Nothing is wrong with what the dict of a hostile object lacks; and a liar has whatever is asked for.
    if guard in ON_VALUES or (kind is Hostile and guard != has_instance_value(X, "a", present=False)):
        assert not held


@pytest.mark.parametrize(
    "guard", [*ON_VALUES, *ON_PARTS, Is(X, None)], ids=lambda guard: type(guard).__name__
)
def test_a_variable_that_is_gone_is_a_miss(guard: Guard) -> None:
    guards = compiled(guard)
    assert not guards.holds(locals_of())
    assert "is no longer there (KeyError)" in (guards.miss(locals_of()) or "")


def test_what_only_looks_like_a_string_is_no_string() -> None:
    assert not compiled(Is(X, "a")).holds(locals_of(x=LyingString("b")))
    assert not compiled(Contains(X, ("a",))).holds(locals_of(x={LyingString("a"): 1}))


NASTY = [
    "'",
    '"',
    "'''",
    '"""',
    "\\",
    "\n",
    "a\nb",
    "'] = 1; raise SystemExit #",
    "x'); import os; os._exit(3) #",
    "{0}",
    "%s",
    "class",
    "L",
    "state",
    "type",
    "len",
    "same",
    "quick",
    "holds",
    "\0",
    "\ud800",
    "",
]


@pytest.mark.parametrize("name", NASTY, ids=ascii)
def test_names_and_keys_are_never_code(name: str) -> None:
    module = nn.Module()
    module.__dict__[name] = 1
    module._parameters[name] = nn.Parameter(torch.ones(1))
    local, table = Local(name), {name: 1, (name,): 2}
    kept = Kept()
    holder = kept.hold(table, name)
    guards = compiled(
        TypeIs(local, nn.Module),
        Is(instance_value(local, name), 1),
        has_instance_value(local, name),
        has_instance_value(local, name + "!", present=False),
        HasKey(instance_value(local, "_buffers"), name, present=False),
        TensorLike(
            Item.at(instance_value(local, "_parameters"), name), TensorFacts.of(module._parameters[name])
        ),
        Is(Item.at(holder, name), 1),
        Is(Item.at(holder, (name,)), 2),
        HasKey(holder, name),
        HasKey(holder, name + "!", present=False),
        Contains(holder, (name, (name,))),
        Is(Local("s"), name),
        Is(Local("t"), (name, (name,))),
        Contains(Local("u"), frozenset({name})),
        Unbound(Local(name + "!")),
        kept=kept,
    )
    state = FrameState({name: module, "s": name, "t": (name, (name,)), "u": {name}} | {name: module}, {})
    if name not in ("s", "t", "u"):
        assert guards.miss(state) is None
        assert guards.holds(state)
        assert guards.holds(state)
    assert len({each.sentence() for each in guards.guards}) == 15
    assert guards.miss(FrameState({}, {})) is not None


def test_types_with_nasty_names() -> None:
    for name in ("'); raise SystemExit #", "holds", "state", "search", "L", "None"):
        kind = type(name, (), {})
        guards = compiled(TypeIs(X, kind))
        assert guards.holds(locals_of(x=kind()))
        assert guards.miss(locals_of(x=1)) == f"argument x: type is int, was {name}"


# Text


def test_lines_are_short_where_they_can_be() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
    guards = compiled(
        AmbientIs(TORCH, AmbientFacts.now()),
        *(
            TensorLike(
                Item.at(instance_value(Item.at(instance_value(X, "_modules"), name), "_parameters"), part),
                TensorFacts.of(getattr(child, part)),
            )
            for name, child in model.named_children()
            for part in ("weight", "bias")
        ),
    )
    assert guards.holds(locals_of(x=model))
    assert max(map(len, guards.text.splitlines())) <= 110


def test_the_text_is_found_by_tracebacks_and_goes_with_the_function() -> None:
    class Interrupting(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise KeyboardInterrupt

    guards = compiled(Is(X, 1))
    with pytest.raises(KeyboardInterrupt) as caught:
        guards.holds(FrameState(Interrupting(), {}))
    frames = traceback.extract_tb(caught.value.__traceback__)
    (frame,) = [each for each in frames if each.name == "check"]
    assert frame.line == "x = L['x']"
    file = frame.filename
    assert "".join(linecache.cache[file][2]) == guards.text  # type: ignore[index]
    del guards, caught, frames, frame
    gc.collect()
    assert file not in linecache.cache


def test_the_python_conditions_decide_where_the_quick_check_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    from torchrepro.torch_api import facts

    monkeypatch.setattr(facts.QuickTensors, "learn", lambda self, *tensors: None)
    guards = compiled(AmbientIs(TORCH, AmbientFacts.now()), TensorLike(X, TensorFacts.of(torch.ones(2))))
    for _ in range(6):
        assert guards.holds(locals_of(x=torch.ones(2)))
        assert not guards.holds(locals_of(x=torch.ones(3)))


def test_guards_keep_no_tensor_alive() -> None:
    import weakref

    tensor = torch.ones(2)
    guards = compiled(AmbientIs(TORCH, AmbientFacts.now()), TensorLike(X, TensorFacts.of(tensor)))
    assert guards.holds(locals_of(x=tensor))
    gone = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert gone() is None


def test_an_answer_of_the_process_is_asked_again() -> None:
    answers = {"ranks": 2}

    def world_size(name: str) -> int:
        return answers[name]

    function, state = compiled(Answers(KEPT.hold(world_size), ("ranks",), 2)), locals_of()
    assert function.holds(state)
    answers["ranks"] = 4
    assert not function.holds(state)
    why = function.miss(state)
    assert why is not None
    assert "world_size" in why
    assert "4" in why
