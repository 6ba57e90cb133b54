"""A break before every statement changes nothing: what lives across a break is rebuilt, whatever it is."""

from __future__ import annotations

import pytest

from tests.frontend.corpus.cutting import CUT, cut
from tests.frontend.corpus.registry import Case, all_cases
from tests.frontend.harness import eager, observe, under_test
from torchrepro.hunt.observation import first_difference

LEFT_OUT = {
    "torch_surface.mixed_precision_off_in_between": "a break empties torch's cache of casts, so that "
    "gradients of a weight that is used twice are rounded otherwise",
}
CASES = [case for case in all_cases() if not case.function.__closure__]


def test_a_break_is_put_before_each_statement() -> None:
    (row,) = (case for case in CASES if str(case) == "control_flow.for_else")
    pieces = cut(row)
    assert pieces is not None
    assert pieces.function.__code__.co_names.count(CUT) == 1
    assert observe(pieces, under_test())[0].breaks >= 5


@pytest.mark.thorough
@pytest.mark.parametrize("row", CASES, ids=str)
def test_a_function_in_pieces_does_what_python_does(row: Case) -> None:
    if str(row) in LEFT_OUT:
        pytest.skip(LEFT_OUT[str(row)])
    pieces = cut(row)
    assert pieces is not None
    for right, got in zip(observe(pieces, eager), observe(pieces, under_test()), strict=True):
        assert first_difference(right.facts, got.facts) is None
