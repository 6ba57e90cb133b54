"""Every function of the corpus gives what Python gives: values, types, identity, changes, output, errors."""

from __future__ import annotations

import pytest

from tests.frontend.corpus.registry import Case, all_cases
from tests.frontend.harness import eager, observe, under_test
from torchrepro.hunt.observation import first_difference

CALLS = ("first call", "second call, other values", "third call, another shape")
CASES = all_cases()


def test_the_corpus_is_large() -> None:
    assert len(CASES) >= 300


@pytest.mark.parametrize("row", CASES, ids=str)
def test_a_captured_function_does_what_python_does(row: Case) -> None:
    expected = observe(row, eager)
    found = observe(row, under_test(), whole=row.breaks == 0)
    for call, right, got in zip(CALLS, expected, found, strict=True):
        assert first_difference(right.facts, got.facts) is None, call
    if row.breaks is not None:
        assert found[0].breaks == row.breaks
    if row.breaks == 0:
        assert found[0].graphs <= 1
    if row.hits:
        assert found[1].graphs == 0, "the second call was captured again"
