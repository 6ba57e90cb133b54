"""Several gloo processes: whoever fails or is killed, the others hear of it, and nobody hangs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

DRIVER = Path(__file__).with_name("rank_driver.py")
DEADLINE = 60.0
SOON = 6.0
"""Seconds in which a death is noticed on a busy machine; a rank that hangs would wait for 30."""


@dataclass(frozen=True)
class Played:
    """What each rank saw, and how it ended."""

    saw: list[dict[str, Any]]
    exits: list[int]
    errors: str


def play(scene: str, world_size: int, init_method: str, directory: Path) -> Played:
    command = [sys.executable, str(DRIVER), scene, str(world_size), init_method, str(directory)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TORCHREPRO_RUN")}
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
        start_new_session=True,
    ) as driver:
        try:
            output, errors = driver.communicate(timeout=DEADLINE)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
    saw = [json.loads((directory / f"{rank}.json").read_text()) for rank in range(world_size)]
    return Played(saw, json.loads(output.splitlines()[-1]), errors)


def by_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play("failing_and_dying", 4, by_port(), tmp_path_factory.mktemp("four"))


def test_four_ranks_share_a_run_id_and_agree_while_all_is_well(four: Played) -> None:
    assert len({saw["run_id"] for saw in four.saw}) == 1
    for saw in four.saw:
        assert saw["before"]
        assert saw["healthy"]["failed"] == saw["healthy_again"]["failed"] == {}
        assert saw["all_reduce"] == 4
        assert saw["notes"] == []


def test_all_ranks_hear_which_rank_failed_with_what_and_where_its_bundle_is(four: Played) -> None:
    for saw in four.saw:
        heard = saw["first_event"]
        assert heard["failed"] == {"2": {"summary": "boom at graph 0 first call", "bundle": "/bundles/2"}}
        assert heard["seconds"] < SOON
        assert "rank 2 failed: boom at graph 0 first call\n  bundle of rank 2: /bundles/2" in heard["message"]


def test_a_failure_at_another_event_is_heard_too(four: Played) -> None:
    for saw in four.saw:
        assert list(saw["other_event"]["failed"]) == ["1"]
        assert saw["other_event"]["seconds"] < SOON


def test_the_rank_that_keeps_the_store_may_fail_too(four: Played) -> None:
    for saw in four.saw:
        assert list(saw["host_fails"]["failed"]) == ["0"]
        assert saw["host_fails"]["missing"] == []


def test_a_killed_rank_is_named_within_seconds_with_what_it_left_behind(four: Played) -> None:
    assert four.exits == [0, 0, 0, -signal.SIGKILL]
    for saw in four.saw[:3]:
        assert saw["death"]["dead"] == [3]
        assert saw["death"]["missing"] == []
        assert saw["death"]["seconds"] < SOON
        assert "rank 3 died\n  bundle of rank 3: /bundles/unfinished" in saw["death"]["message"]


def test_a_second_group_works_like_the_first_and_the_death_of_the_store_is_survived(tmp_path: Path) -> None:
    played = play("losing_the_store", 2, by_port(), tmp_path)
    assert played.exits == [-signal.SIGKILL, 0]
    survivor = played.saw[1]
    assert survivor["between"]
    for group in ("first_group", "second_group"):
        assert (survivor[group]["failed"], survivor[group]["missing"]) == ({}, [])
    assert survivor["death"]["dead"] == [0]
    assert survivor["death"]["seconds"] < SOON
    assert survivor["after_death"]["seconds"] < 1


def test_ranks_out_of_step_wait_once_say_it_once_and_still_tell_failures(tmp_path: Path) -> None:
    (tmp_path / "saw").mkdir()
    played = play("out_of_step", 2, f"file://{tmp_path}/store", tmp_path / "saw")
    assert played.exits == [0, 0]
    first, second = played.saw
    assert first["run_id"] == second["run_id"]
    assert second["alone"]["missing"] == [0]
    assert second["alone_again"]["seconds"] < 0.5
    for saw in (first, second):
        assert saw["all_reduce"] == 2
        assert saw["together"]["failed"] == {}
        assert list(saw["failure"]["failed"]) == ["1"]
        assert len(saw["notes"]) == 1
        assert "rank 0 did not come to 'graph 1 compiled' within 1 s" in saw["notes"][0]


def test_a_rank_that_ends_early_is_not_taken_for_dead(tmp_path: Path) -> None:
    played = play("leaving", 2, by_port(), tmp_path)
    assert played.exits == [0, 0]
    assert played.saw[0]["alone"]["dead"] == []
    assert played.saw[0]["alone"]["seconds"] < SOON
    assert "rank 1 has left" in played.saw[0]["notes"][0]
    assert "Failed to recv" not in played.errors
    assert "Broken pipe" not in played.errors
