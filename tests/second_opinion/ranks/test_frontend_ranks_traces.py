"""Two gloo processes that call captured functions: in lock step, or told by name where they part."""

from __future__ import annotations

from typing import Any

import pytest
from frontend_rank_jobs import played

pytestmark = pytest.mark.slow

SCENES = (
    "traced_alike",
    "traced_by_rank",
    "traced_break_on_one",
    "traced_miss_on_one",
    "traced_failing_on_one",
    "traced_by_data",
)

Saw = list[dict[str, Any]]


@pytest.fixture(scope="module")
def saw(tmp_path_factory: pytest.TempPathFactory) -> Saw:
    return played(tmp_path_factory.mktemp("ranks"), *SCENES)


def test_the_same_function_is_captured_once(saw: Saw) -> None:
    for rank in saw:
        assert rank["traced_alike"]["right"] == [True, True]
        assert rank["traced_alike"]["graphs"] == [1, 1]


def test_branches_by_rank_are_an_error_on_both_that_names_the_first_differing_operation(saw: Saw) -> None:
    for rank in saw:
        found = rank["traced_by_rank"]
        assert found["error"] == "RanksDisagree"
        assert "by_rank (frontend_rank_scenes.py:" in found["text"]
        assert "= relu(sin)` on rank 0; `" in found["text"]
        assert "= cos(sin)` on rank 1" in found["text"]


def test_a_break_on_one_rank_splits_the_function_on_both(saw: Saw) -> None:
    for rank in saw:
        assert rank["traced_break_on_one"]["right"] == [True, True]
        assert rank["traced_break_on_one"]["graphs"] == [2, 2]


def test_a_guard_miss_on_one_rank_is_captured_again_on_both(saw: Saw) -> None:
    for rank in saw:
        assert rank["traced_miss_on_one"]["right"] == [True, True, True]
        assert rank["traced_miss_on_one"]["graphs"] == [1, 2, 2]


def test_branches_that_depend_on_data_are_named_where_they_part(saw: Saw) -> None:
    for rank in saw:
        found = rank["traced_by_data"]
        assert found["error"] == "RanksDisagree"
        assert "a call of by_data" in found["text"]
        assert "on rank 0" in found["text"]
        assert "on rank 1" in found["text"]


def test_a_backend_that_fails_on_one_rank_stops_the_other_at_once(saw: Saw) -> None:
    assert saw[1]["traced_failing_on_one"]["text"] == "boom"
    other = saw[0]["traced_failing_on_one"]
    assert other["error"] == "RanksDisagree"
    assert "ValueError: boom on rank 1" in other["text"]
    assert other["seconds"] < 8
