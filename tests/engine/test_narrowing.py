"""Narrowing down: the switches that are named suffice, each is needed, and few questions are asked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from torchrepro.engine.subsets import TOGETHER, narrow


class Questions:
    """The failure goes away where one of the sets that suffice is turned off."""

    def __init__(self, *sufficient: frozenset[int]) -> None:
        self._sufficient = sufficient
        self.count = 0

    def __call__(self, chosen: Sequence[int]) -> bool:
        self.count += 1
        return any(needed <= set(chosen) for needed in self._sufficient)


def guilty_sets(largest: int) -> st.SearchStrategy[tuple[int, frozenset[int]]]:
    return st.integers(1, 100).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.frozensets(st.integers(0, count - 1), min_size=1, max_size=min(largest, count)),
        )
    )


@given(guilty_sets(TOGETHER))
def test_exactly_the_switches_that_are_needed_together_are_named(case: tuple[int, frozenset[int]]) -> None:
    count, culprit = case
    assert set(narrow(range(count), Questions(culprit))) == culprit


@given(guilty_sets(1))
def test_one_guilty_switch_costs_a_logarithm_and_the_proof(case: tuple[int, frozenset[int]]) -> None:
    count, culprit = case
    questions = Questions(culprit)
    narrow(range(count), questions)
    assert questions.count <= math.ceil(math.log2(count)) + 1


@given(st.integers(2, 60), st.data())
def test_the_first_that_suffices_alone_is_named(count: int, data: st.DataObject) -> None:
    sufficient = data.draw(st.frozensets(st.integers(0, count - 1), min_size=1))
    questions = Questions(*(frozenset({one}) for one in sufficient))
    assert narrow(range(count), questions) == [min(sufficient)]


@given(st.integers(1, 60), st.data())
def test_weights_change_the_cost_and_not_the_answer(count: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(0, count - 1))
    weights = data.draw(st.lists(st.floats(0.1, 100), min_size=count, max_size=count))
    questions = Questions(frozenset({culprit}))
    assert narrow(range(count), questions, weight=weights.__getitem__) == [culprit]


def test_a_likely_one_is_found_sooner() -> None:
    questions = Questions(frozenset({40}))
    narrow(range(64), questions, weight=lambda one: 60.0 if one == 40 else 1.0)
    assert questions.count <= 4


def test_nobody_is_named_where_more_would_be_needed() -> None:
    assert narrow(range(10), Questions(frozenset(range(TOGETHER + 1)))) == []
