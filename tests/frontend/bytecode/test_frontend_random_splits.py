"""Random functions, split at every instruction they run."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from all_splits import Called, Split
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from split_functions import Noted

NAMES = st.sampled_from("abc")

EXPRESSIONS = st.recursive(
    st.one_of(NAMES, st.integers(0, 3).map(str), st.just("[a, b]")),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "*", "-", "//", "<", "==", "in"]), inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("noted({}, key={})".format, inner, inner),
        st.builds("noted(*({}, 1))".format, inner),
        st.builds('f"{{{}}}{{b!r:>4}}"'.format, NAMES),
        st.builds("[{} for {} in range({}) if {}]".format, inner, NAMES, st.integers(0, 2), inner),
        st.builds("(lambda b: ({}, {}))(1)".format, inner, NAMES),
        st.builds("({} := {})".format, NAMES, inner),
        st.builds("sum(b for b in ({}, 1))".format, inner),
    ),
    max_leaves=4,
)
SIMPLE = st.one_of(
    st.builds("{} = {}".format, NAMES, EXPRESSIONS),
    st.builds("{} += {}".format, NAMES, EXPRESSIONS),
    st.builds("noted({})".format, EXPRESSIONS),
    st.builds("{}, *{} = {}".format, NAMES, NAMES, EXPRESSIONS),
    st.builds("del {}".format, NAMES),
    st.builds("return {}".format, EXPRESSIONS),
    st.builds("raise ValueError({})".format, EXPRESSIONS),
    st.builds("assert {}, 'asserted'".format, EXPRESSIONS),
)


def block(statements: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lines = st.lists(statements, min_size=1, max_size=3)
    return lines.map(lambda each: textwrap.indent("\n".join(each), "    "))


def compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    inside, looping = block(inner), block(st.one_of(inner, st.sampled_from(["break", "continue"])))
    return st.one_of(
        st.builds("if {}:\n{}\nelse:\n{}".format, EXPRESSIONS, inside, inside),
        st.builds("for {} in range({}):\n{}\nelse:\n{}".format, NAMES, st.integers(0, 2), looping, inside),
        st.builds("while next(rounds, 0):\n{}".format, looping),
        st.builds("try:\n{}\nexcept (ValueError, TypeError) as a:\n{}".format, inside, inside),
        st.builds("try:\n{}\nfinally:\n{}".format, inside, inside),
        st.builds("with Noted(seen, 'w', {}) as {}:\n{}".format, st.booleans(), NAMES, inside),
        st.builds("def inner():\n    nonlocal {}\n{}\ninner()".format, NAMES, inside),
    )


BODIES = block(st.recursive(SIMPLE, compound, max_leaves=6))
TEMPLATE = """
def outer(noted, seen, rounds):
    c = 5
    def f(a, b):
{}
        return a, b, c
    return f
"""


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(BODIES)
def test_a_random_function_goes_on_as_if_it_had_not_been_split(body: str) -> None:
    text = TEMPLATE.format(textwrap.indent(body, "    "))
    names: dict[str, Any] = {"Noted": Noted}
    try:
        exec(compile(text, "<random function>", "exec"), names)
    except SyntaxError:
        reject()  # a walrus on a variable of its own comprehension, and the like

    def case(seen: list[Any]) -> Called:
        def noted(value: Any, *more: Any, key: Any = None) -> Any:
            seen.append((value, more, key))
            return value

        return names["outer"](noted, seen, iter([1, 1])), (1, 2), {}

    Split(text, case).check()
