"""Candidates on the executors of the standard library end as in local children, and nothing is left."""

from __future__ import annotations

import concurrent.futures
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from executing import nothing_left_behind, soon
from sending import remote, repro_of, run, task

from torchrepro.engine.processes.fresh_process import verdict_of
from torchrepro.engine.remote.messages import Candidate
from torchrepro.engine.remote.remote_executor import RemoteExecutor
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.verdict import Kind

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteExecutor]:
    """One for all tests of this file: a host takes seconds to start."""
    with (
        nothing_left_behind(tmp_path_factory.mktemp("scratch")),
        ThreadPoolExecutor(2) as pool,
        remote(pool) as sending,
    ):
        yield sending


def test_a_candidate_arrives_with_its_values_and_every_end_is_the_outcome_of_a_child(
    sending: RemoteExecutor,
) -> None:
    large = torch.arange(200_000, dtype=torch.float64)
    sums = run(sending, task("remote_jobs:values", torch.ones(3), large, large[5:])).result["sums"]
    assert sums == [3.0, float(large.sum()), float(large[5:].sum())]
    crash = run(sending, task("candidate_jobs:dies", signal="SIGSEGV"))
    assert verdict_of(crash, 60).signal == "SIGSEGV"
    assert "last words" in crash.output_tail
    hang = run(sending, task("candidate_jobs:sleeps", seconds=600, phase="compile", time_limit=0.5))
    assert verdict_of(hang, 0.5).kind is Kind.HANG
    with pytest.raises(TorchReproError, match="a fact"):
        verdict_of(run(sending, task("candidate_jobs:user_error")), 60)


def test_a_crash_costs_the_child_and_not_its_host(sending: RemoteExecutor, tmp_path: Path) -> None:
    def hosts(name: str) -> set[int]:
        """Of two candidates that run at the same time."""
        told, wait = tmp_path / name, tmp_path / f"{name}-wait"
        for _ in range(2):
            sending.start(task("remote_jobs:family", told=str(told), wait=str(wait)))
        assert soon(lambda: told.exists() and len(told.read_text().splitlines()) == 2, 60)
        wait.touch()
        return {sending.wait()[1].result[1] for _ in range(2)}

    before = hosts("before")
    for _ in range(3):
        run(sending, task("candidate_jobs:dies", signal="SIGKILL"))
    assert hosts("after") == before


def test_a_candidate_whose_host_is_killed_runs_again_in_another(
    sending: RemoteExecutor, tmp_path: Path
) -> None:
    told, wait = tmp_path / "told", tmp_path / "wait"
    one = task("remote_jobs:family", told=str(told), wait=str(wait))
    sending.start(one)
    assert soon(told.exists, 60)
    lost = [int(pid) for pid in told.read_text().split()]
    os.kill(lost[1], signal.SIGKILL)
    wait.touch()
    ended, outcome = sending.wait()
    assert ended is one
    assert outcome.result[1] != lost[1]
    assert soon(lambda: not Path(f"/proc/{lost[0]}").exists())


def test_a_large_storage_is_sent_once_for_all_candidates_that_have_it(tmp_path: Path) -> None:
    class Counting(ThreadPoolExecutor):
        sizes: list[int] = []  # noqa: RUF012

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            (candidate,) = [each for each in args if isinstance(each, Candidate)]
            inline = (piece.content for pieces in candidate.members.values() for piece in pieces)
            self.sizes.append(sum(map(len, inline)))
            return super().submit(lambda: _ended(candidate))

    weights = torch.rand(1 << 20)
    with Counting(1) as pool, remote(pool) as sending:
        for _ in range(3):
            assert run(sending, task("any:job", weights)).result == [weights.numel() * 4]
        assert max(pool.sizes) < 64 << 10


def _ended(candidate: Candidate) -> Any:
    from torchrepro.engine.processes.child import Outcome
    from torchrepro.engine.remote.messages import Ended

    return Ended(candidate.number, Outcome(result=[4 << 20] if candidate.digests else []))


def test_other_versions_on_the_worker_end_the_search_with_the_next_step() -> None:
    with (
        ThreadPoolExecutor(1) as pool,
        remote(pool, torch="1.0") as sending,
        pytest.raises(TorchReproError, match=r"torch is 2.*, and 1\.0 where the search runs") as caught,
    ):
        run(sending, task("remote_jobs:values"))
    assert "install the same versions" in caught.value.next_step


def test_a_pool_that_breaks_is_an_error_and_no_verdict(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1) as pool, remote(pool) as sending:
        told = tmp_path / "told"
        one = task("remote_jobs:family", told=str(told), wait=str(tmp_path / "never"))
        sending.start(one)
        assert soon(told.exists, 60)
        os.kill(int(told.read_text().split()[2]), signal.SIGKILL)
        with pytest.raises(TorchReproError, match="BrokenProcessPool") as caught:
            sending.wait()
    assert "continues from here" in caught.value.next_step
    pids = told.read_text().split()
    assert soon(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids[:2]))


def test_what_cannot_be_written_down_is_an_error_of_its_task(sending: RemoteExecutor) -> None:
    from dataclasses import replace

    one = task("remote_jobs:values")
    outcome = run(sending, replace(one, repro=replace(repro_of(), inputs=(object(),))))
    with pytest.raises(TorchReproError):
        verdict_of(outcome, 60)


def test_a_strangers_candidate_is_confined_on_the_worker() -> None:
    with ThreadPoolExecutor(1) as pool, remote(pool, confined=True) as sending:
        assert run(sending, task("remote_jobs:values", torch.ones(3))).result == {
            "sums": [3.0],
            "confined": True,
        }


def test_an_executor_that_refuses_says_so() -> None:
    class Refusing(concurrent.futures.Executor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("cannot schedule new futures after shutdown")

    with remote(Refusing()) as sending, pytest.raises(TorchReproError, match="after shutdown"):
        run(sending, task("remote_jobs:values"))
