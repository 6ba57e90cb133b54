"""The fewest items that still fail: for any failure the answer fails and needs each of its items."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrepro.engine.subsets import minimal_subset

Predicate = Callable[[frozenset[int]], bool]


class Asked:
    """Answers from a predicate and counts: questions, and rounds in which they are asked."""

    def __init__(self, fails: Predicate) -> None:
        self.fails = fails
        self.rounds = 0
        self.questions: list[frozenset[int]] = []

    def __call__(self, parts: Sequence[Sequence[int]]) -> int | None:
        assert parts
        assert all(list(part) == sorted(set(part)) for part in parts)
        self.rounds += 1
        self.questions += [frozenset(part) for part in parts]
        return next((index for index, part in enumerate(parts) if self.fails(frozenset(part))), None)


def assert_minimal(kept: list[int], fails: Predicate) -> None:
    assert fails(frozenset(kept))
    assert not any(fails(frozenset(kept) - {item}) for item in kept)


sizes = st.integers(1, 40)
widths = st.integers(1, 5)


@st.composite
def monotone(draw: st.DrawFn) -> tuple[int, Predicate]:
    """Fails with any superset of one of a few sets."""
    size = draw(sizes)
    causes = draw(st.lists(st.frozensets(st.integers(0, size - 1)), min_size=1, max_size=4))
    return size, lambda part: any(cause <= part for cause in causes)


@st.composite
def arbitrary(draw: st.DrawFn) -> tuple[int, Predicate]:
    """Fails for all items together and otherwise as a coin says, the same each time."""
    size, seed, share = draw(sizes), draw(st.integers(0, 2**32)), draw(st.floats(0, 1))
    whole = frozenset(range(size))

    def fails(part: frozenset[int]) -> bool:
        return part == whole or random.Random(f"{seed} {sorted(part)}").random() < share

    return size, fails


@settings(max_examples=300, deadline=None)
@given(case=st.one_of(monotone(), arbitrary()), width=widths)
def test_the_answer_fails_and_needs_each_of_its_items(case: tuple[int, Predicate], width: int) -> None:
    size, fails = case
    asked = Asked(fails)
    kept = minimal_subset(range(size), asked, width=width)
    assert kept == sorted(kept)
    assert_minimal(kept, fails)


@settings(max_examples=300, deadline=None)
@given(case=st.one_of(monotone(), arbitrary()), seed=st.integers(0, 99), width=widths)
def test_whatever_is_called_near_the_answer_is_minimal(
    case: tuple[int, Predicate], seed: int, width: int
) -> None:
    size, fails = case

    def shuffled(needed: Sequence[int], rest: Sequence[int]) -> list[int]:
        return random.Random(seed).sample(list(rest), len(rest))

    assert_minimal(minimal_subset(range(size), Asked(fails), width=width, nearest=shuffled), fails)


@settings(max_examples=300, deadline=None)
@given(case=st.one_of(monotone(), arbitrary()))
def test_nothing_is_asked_twice(case: tuple[int, Predicate]) -> None:
    size, fails = case
    asked = Asked(fails)
    minimal_subset(range(size), asked)
    assert len(asked.questions) == len(set(asked.questions))


@settings(max_examples=200, deadline=None)
@given(size=st.integers(1, 2000), data=st.data())
def test_a_few_needed_items_take_a_bisection_each(size: int, data: st.DataObject) -> None:
    """The committed figure: k * ceil(log2 n) + 2k + 2 questions for k needed of n, as long as k is small."""
    cause = data.draw(st.frozensets(st.integers(0, size - 1), max_size=6))
    asked = Asked(lambda part: cause <= part)
    assert minimal_subset(range(size), asked) == sorted(cause)
    count = len(cause)
    assert asked.rounds <= count * math.ceil(math.log2(size) if size > 1 else 0) + 2 * count + 2


@settings(max_examples=200, deadline=None)
@given(size=st.integers(7, 300), data=st.data())
def test_many_needed_items_take_two_questions_each(size: int, data: st.DataObject) -> None:
    """The committed figure: 2n + 7 * ceil(log2 n) + 14 questions at most, whatever is needed of n."""
    cause = data.draw(st.frozensets(st.integers(0, size - 1)))
    asked = Asked(lambda part: cause <= part)
    assert minimal_subset(range(size), asked) == sorted(cause)
    assert asked.rounds <= 2 * size + 7 * math.ceil(math.log2(size)) + 14


@pytest.mark.parametrize("count", [1, 2, 5, 30, 400])
def test_more_workers_take_fewer_rounds(count: int) -> None:
    rounds = {}
    for width in (1, 2, 4):
        total = 0
        for seed in range(10):
            cause = frozenset(random.Random(seed).sample(range(400), count))
            asked = Asked(lambda part, cause=cause: cause <= part)  # type: ignore[misc]
            assert minimal_subset(range(400), asked, width=width) == sorted(cause)
            total += asked.rounds
        rounds[width] = total
    assert rounds[1] > rounds[2] > rounds[4]


def test_the_rest_of_a_pair_is_found_at_once_if_it_is_near() -> None:
    asked = Asked(lambda part: {500, 501} <= part)

    def nearest(needed: Sequence[int], rest: Sequence[int]) -> list[int]:
        return sorted(rest, key=lambda item: abs(item - needed[0]))

    assert minimal_subset(range(1000), asked, nearest=nearest) == [500, 501]
    assert asked.rounds <= 15


def test_what_fails_with_nothing_needs_one_question() -> None:
    asked = Asked(lambda part: True)
    assert minimal_subset(range(100), asked) == []
    assert asked.rounds == 1
    assert minimal_subset([], asked) == []
    assert asked.rounds == 1
