"""Two gloo processes: they agree, or both are told why not, and nobody hangs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from frontend_rank_jobs import played

pytestmark = pytest.mark.slow

SCENES = (
    "same",
    "one_more_break",
    "different_branches",
    "guard_miss_on_one",
    "failing",
    "late",
    "dying",
)
SOON = 8.0
"""Seconds in which a death is noticed on a busy machine; a rank that hangs would wait for 20."""

Saw = list[dict[str, Any]]


@pytest.fixture(scope="module")
def saw(tmp_path_factory: pytest.TempPathFactory) -> Saw:
    return played(tmp_path_factory.mktemp("ranks"), *SCENES)


def test_ranks_that_trace_the_same_compile_it(saw: Saw) -> None:
    for rank in saw:
        assert rank["same"]["graph"] == ["linear", "relu"]
        assert rank["same"]["traces"] == 1
        assert rank["same"]["sum"] == 2


def test_a_break_on_one_rank_is_a_break_on_both(saw: Saw) -> None:
    for rank in saw:
        assert rank["one_more_break"]["graph"] == ["linear", "relu"]
        assert rank["one_more_break"]["traces"] == 2


def test_different_branches_are_an_error_on_both_that_names_ranks_and_operations(saw: Saw) -> None:
    for rank in saw:
        assert rank["different_branches"]["error"] == "RanksDisagree"
        assert "operation 2 is `relu` on rank 0; `sin` on rank 1" in rank["different_branches"]["text"]


def test_a_guard_miss_on_one_rank_recompiles_on_both(saw: Saw) -> None:
    for rank in saw:
        assert rank["guard_miss_on_one"]["recompiles"] == [False, True, False]


def test_a_rank_that_fails_is_heard_at_once(saw: Saw) -> None:
    assert saw[1]["failing"]["error"] == "RanksDisagree"
    assert "ValueError: boom on rank 0" in saw[1]["failing"]["text"]
    assert saw[1]["failing"]["seconds"] < SOON


def test_a_late_rank_is_missed_and_does_not_go_on_alone(saw: Saw) -> None:
    for rank in saw:
        assert rank["late"]["error"] == "RanksMissing"
        assert "rank 1 did not come to a call of step at model.py:3 within 1 s" in rank["late"]["text"]


def test_a_dead_rank_is_named_within_seconds(saw: Saw) -> None:
    survivor = saw[0]["dying"]
    assert survivor["error"] == "RanksMissing"
    assert "rank 1 has ended before a call of step" in survivor["text"]
    assert survivor["seconds"] < SOON


def test_the_death_of_the_rank_that_keeps_the_store_is_survived(tmp_path: Path) -> None:
    played_ranks = [rank.get("store_dying") for rank in played(tmp_path, "same", "store_dying")]
    assert played_ranks[0] is None
    assert played_ranks[1]["error"] == "RanksMissing"
    assert "rank 0 has ended" in played_ranks[1]["text"]
    assert played_ranks[1]["seconds"] < SOON
