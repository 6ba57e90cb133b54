"""Rules say what was tried and nothing else, for any limit."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchrepro.explain.rules import (
    between,
    changes,
    sentence_on_sizes,
    sentence_on_values,
    size_rule,
    sizes_between,
    value_rule,
)
from torchrepro.explain.subject import Evidence, sentence_on_choices

SIZES = st.sets(st.integers(1, 100), min_size=1, max_size=12)
FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


@pytest.mark.parametrize(
    ("failing", "passing", "expected"),
    [
        ([1, 2, 3], [], "any size from 1 to 3 in dim 1 of x fails (3 tried)"),
        (
            [17, 18, 64],
            [1, 15, 16],
            "any size >= 17 in dim 1 of x fails (3 tried, up to 64), none below (3 tried)",
        ),
        (
            [20, 64],
            [1, 16],
            "any size >= 20 in dim 1 of x fails (2 tried, up to 64), none up to 16 (2 tried)",
        ),
        ([1, 2], [3, 9], "any size <= 2 in dim 1 of x fails (2 tried), none above (2 tried)"),
        (
            [1, 2, 4, 9],
            [8, 16, 64],
            "any size that is not a multiple of 8 in dim 1 of x fails (4 tried), no multiple of 8 (3 tried)",
        ),
        (
            [16, 32],
            [1, 8, 17, 33],
            "any size that is a multiple of 16 in dim 1 of x fails (2 tried), no other (4 tried)",
        ),
        ([17], [16, 18], "only size 17 in dim 1 of x fails, none of the others (2 tried)"),
        ([2, 3, 5], [1, 4, 6], "of the sizes in dim 1 of x 2, 3 and 5 fail, 1, 4 and 6 pass"),
    ],
)
def test_sizes_in_words(failing: list[int], passing: list[int], expected: str) -> None:
    assert sentence_on_sizes(failing, passing, "in dim 1 of x") == expected


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("failing", "passing", "expected"),
    [
        ([0.0, 1.0, NAN], [], "any value of x fails (2 tried), nan too"),
        ([0.0, 1.0], [INF, NAN], "any finite value of x fails (2 tried), not inf or nan"),
        ([-1.0, -0.5], [0.0, 1.0], "any value of x below 0 fails (2 tried), none at or above 0 (2 tried)"),
        ([0.75, 1.0], [0.5, 0.0], "any value of x above 0.6 fails (2 tried), none below (2 tried)"),
        (
            [2.0, -2.0],
            [1.0, 0.0, -1.0],
            "any value of x below -1 or above 1 fails (2 tried), none from the one to the other (3 tried)",
        ),
        ([1.0, -1.0], [0.0], "any value of x other than 0 fails (2 tried), 0 does not"),
        ([NAN], [0.0, 1.0, INF], "only nan as value of x fails, no other (3 tried)"),
        ([0.0], [-1.0, 1.0], "only 0 as value of x fails, none of the others (2 tried)"),
        ([128, 255], [0, 127], "any value of x at or above 128 fails (2 tried), none below (2 tried)"),
        (
            [*range(0, 20, 2)],
            [*range(1, 19, 2)],
            "as value of x 0, 2, 4 and 7 more fail, 1, 3, 5 and 6 more pass",
        ),
    ],
)
def test_values_in_words(failing: list[float], passing: list[float], expected: str) -> None:
    assert sentence_on_values(failing, passing, "value of x") == expected


def test_choices_in_words() -> None:
    assert (
        sentence_on_choices("float32", Evidence(("float32",), ("float64",), ()))
        == "only float32: float64 passes"
    )
    alike = Evidence(("float32", "bfloat16"), ("float64",), ())
    assert sentence_on_choices("float32", alike) == "float32 and bfloat16 alike, float64 passes"


@given(failing=SIZES, passing=SIZES)
def test_a_rule_about_sizes_agrees_with_everything_tried(failing: set[int], passing: set[int]) -> None:
    passing -= failing
    rule = size_rule(failing, passing)
    if rule is not None:
        says = [_size_fails(rule.fails, size) for size in (*failing, *passing)]
        assert says == [True] * len(failing) + [False] * len(passing)


@given(failing=st.sets(FINITE, min_size=1, max_size=12), passing=st.sets(FINITE, min_size=1, max_size=12))
def test_a_rule_about_values_agrees_with_everything_tried(failing: set[float], passing: set[float]) -> None:
    passing -= failing
    rule = value_rule(failing, passing)
    if rule is not None:
        says = [_value_fails(rule.fails, value) for value in (*failing, *passing)]
        assert says == [True] * len(failing) + [False] * len(passing)


@given(limit=st.integers(2, 500), tried=SIZES)
def test_refining_finds_the_limit_of_sizes(limit: int, tried: set[int]) -> None:
    tried = {1, 600, *tried}
    for _ in range(4):
        failing, passing = ({s for s in tried if (s >= limit) is fails} for fails in (True, False))
        ((low, high),) = changes(failing, passing)
        tried |= set(sizes_between(int(low), int(high), 14))
    assert (low, high) == (limit - 1, limit)
    assert size_rule(failing, passing).fails == f">= {limit}"  # type: ignore[union-attr]


@given(low=FINITE, high=FINITE, count=st.integers(1, 60))
def test_numbers_between_lie_between_and_in_order(low: float, high: float, count: int) -> None:
    low, high = sorted((low, high))
    found = between(low, high, count, torch.float32)
    assert found == sorted(set(found))
    assert len(found) <= count
    assert all(low < value < high for value in found)


def _size_fails(words: str, size: int) -> bool:
    """Read a rule back."""
    if words.isdigit():
        return size == int(words)
    checks = []
    for pattern, check in (
        (r">= (\d+)", lambda n: size >= n),
        (r"<= (\d+)", lambda n: size <= n),
        (r"not a multiple of (\d+)", lambda n: size % n != 0),
        (r"is a multiple of (\d+)", lambda n: size % n == 0),
        (r"from (\d+)", lambda n: size >= n),
        (r" to (\d+)", lambda n: size <= n),
    ):
        checks += [check(int(number)) for number in re.findall(pattern, words)]
    assert checks, words
    return all(checks)


def _value_fails(words: str, value: float) -> bool:
    """Read a rule back."""
    number = r"(-?[\d.]+(?:e[+-]?\d+)?)"
    if words == "other than 0":
        return value != 0
    if found := re.fullmatch(rf"below {number} or above {number}", words):
        return value < float(found[1]) or value > float(found[2])
    if found := re.fullmatch(rf"from {number} to {number}", words):
        return float(found[1]) <= value <= float(found[2])
    if found := re.fullmatch(number, words):
        return value == float(found[1])
    found = re.fullmatch(rf"(of a magnitude )?(at or )?(above|below) {number}", words)
    assert found, words
    value, limit = abs(value) if found[1] else value, float(found[4])
    if found[2] and value == limit:
        return True
    return value > limit if found[3] == "above" else value < limit
