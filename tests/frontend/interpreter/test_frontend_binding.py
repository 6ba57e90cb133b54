"""Arguments are bound as CPython binds them, with its errors."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from torchrepro.frontend.interpreter.frame import bind_arguments

NAMES = ["a", "b", "c", "d", "e"]


@st.composite
def functions(draw: st.DrawFn) -> FunctionType:
    """A function of any kind of parameters, which returns its arguments by name."""
    names = NAMES[: draw(st.integers(0, 5))]
    keyword_only_from = draw(st.integers(0, len(names)))
    positional, keyword_only = names[:keyword_only_from], names[keyword_only_from:]
    first_default = draw(st.integers(0, len(positional)))
    parts = [f"{n}='{n}0'" if i >= first_default else n for i, n in enumerate(positional)]
    if positional and draw(st.booleans()):
        parts.insert(draw(st.integers(1, len(positional))), "/")
    if draw(st.booleans()):
        parts.append("*args")
    elif keyword_only:
        parts.append("*")
    parts += [f"{n}='{n}0'" if draw(st.booleans()) else n for n in keyword_only]
    if draw(st.booleans()):
        parts.append("**kwargs")
    space: dict[str, Any] = {}
    exec(f"def function({', '.join(parts)}):\n    return locals()", space)
    return space["function"]


@given(
    functions(),
    st.lists(st.integers(), max_size=6),
    st.dictionaries(st.sampled_from([*NAMES, "x", "args"]), st.integers()),
)
def test_arguments_are_bound_as_in_a_call(
    function: FunctionType, args: list[int], kwargs: dict[str, int]
) -> None:
    assert _outcome(bind_arguments, function, args, kwargs) == _outcome(_call, function, args, kwargs)


def _call(function: FunctionType, args: list[int], kwargs: dict[str, int]) -> Any:
    return function(*args, **kwargs)


def _outcome(bind: Any, *arguments: Any) -> Any:
    try:
        return bind(*arguments)
    except TypeError as error:
        return str(error)


def test_defaults_can_come_from_elsewhere() -> None:
    def function(a: int, b: int = 2, *, c: int = 3) -> None: ...

    assert bind_arguments(function, (1,), {}) == {"a": 1, "b": 2, "c": 3}
    assert bind_arguments(function, (1,), {}, defaults=(20,), kwdefaults={"c": 30}) == {
        "a": 1,
        "b": 20,
        "c": 30,
    }


def test_a_refused_call_does_not_run_the_function() -> None:
    ran = []

    def function(a: int) -> None:
        ran.append(a)

    assert "missing 1 required positional argument: 'a'" in _outcome(bind_arguments, function, (), {})
    assert ran == []
