"""Workers that are used again: the same answers as from forked children, and none is used once harmed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from executing import nothing_left_behind, run, small_repro, task_of

from torchrepro.engine.processes.executor import Executor, Task
from torchrepro.engine.processes.fork_safety import prepare_to_fork
from torchrepro.engine.processes.fresh_process import verdict_of
from torchrepro.engine.processes.workers import Workers
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.verdict import Kind

pytestmark = pytest.mark.slow
WARM_UP = "torchrepro.engine.search.setup:warm_up_worker"


@pytest.fixture(scope="module", params=["started", "forked ahead"])
def executor(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Executor]:
    """One for all tests of this file: a worker takes seconds to start."""
    scratch = tmp_path_factory.mktemp("scratch")
    cache = str(tmp_path_factory.mktemp("cache"))
    with pytest.MonkeyPatch.context() as patch, nothing_left_behind(scratch), closing(Workers()) as workers:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", cache)
        if request.param == "forked ahead":
            prepare_to_fork()
            payload: dict[str, object] = {"devices": ["cpu"], "threads": 1}
            workers.fork_ahead(3, prepared=1, job=WARM_UP, payload=payload)
        with Executor(workers=2, forks=False, reusable=workers) as executor:
            yield executor


def test_a_worker_gets_an_equal_repro_and_is_used_again(executor: Executor) -> None:
    assert run(executor, "ops", number=41).result == {"ops": 1, "sum": 6.0, "payload": {"number": 41}}
    first, second = (run(executor, "surroundings").result for _ in range(2))
    assert first == second
    assert first["session"] == first["pid"]


def test_what_one_task_prints_is_not_put_down_to_the_next(executor: Executor) -> None:
    outcome = run(executor, "prints")
    assert verdict_of(outcome, 60).notes == ("",)
    assert "a word of a program" in outcome.output_tail
    assert run(executor, "passes").output_tail == ""


def test_errors_do_not_cost_a_worker(executor: Executor) -> None:
    before = run(executor, "surroundings").result["pid"]
    with pytest.raises(TorchReproError, match="a fact"):
        verdict_of(run(executor, "user_error"), 60)
    with pytest.raises(HarnessError):
        verdict_of(run(executor, "own_bug"), 60)
    limited = {"how": "torch", "memory_limit": 200 << 20, "phase": "run"}
    assert verdict_of(run(executor, "takes_memory", bytes=1 << 30, **limited), 60).kind is Kind.OUT_OF_MEMORY
    assert verdict_of(run(executor, "takes_memory", bytes=1 << 20, **limited), 60).kind is Kind.PASS
    assert run(executor, "surroundings").result["pid"] == before


def test_a_repro_that_cannot_be_written_down_is_an_error_of_its_task(executor: Executor) -> None:
    task = Task("candidate_jobs:ops", replace(small_repro(), inputs=(object(),)))
    executor.start(task)
    with pytest.raises(TorchReproError):
        verdict_of(executor.wait()[1], 60)


def test_temporary_files_go_with_the_task(executor: Executor) -> None:
    paths = run(executor, "leaves_temporary_files").result["paths"]
    assert not any(map(os.path.exists, paths))


def test_whatever_harms_a_worker_is_an_outcome_and_the_worker_is_replaced(executor: Executor) -> None:
    crashing = task_of("dies", signal="SIGSEGV")
    hanging = task_of("sleeps", seconds=600, time_limit=0.5, phase="compile")
    for task in (crashing, hanging):
        executor.start(task)
    outcomes = dict(executor.wait() for _ in range(2))
    assert verdict_of(outcomes[crashing], 60).signal == "SIGSEGV"
    assert verdict_of(outcomes[hanging], 0.5).kind is Kind.HANG
    assert run(executor, "passes").result["kind"] == "pass"


def test_workers_are_left_to_the_next_executor(tmp_path: Path) -> None:
    with nothing_left_behind(tmp_path), closing(Workers()) as workers:
        pids = []
        for _ in range(2):
            with Executor(1, forks=False, reusable=workers) as executor:
                pids.append(run(executor, "surroundings").result["pid"])
        assert pids[0] == pids[1]


def test_a_worker_that_died_while_it_was_warmed_up_is_replaced(tmp_path: Path) -> None:
    prepare_to_fork()
    with nothing_left_behind(tmp_path), closing(Workers()) as workers:
        payload: dict[str, object] = {"devices": ["no such device"], "threads": 1}
        workers.fork_ahead(2, prepared=1, job=WARM_UP, payload=payload)
        with Executor(1, forks=False, reusable=workers) as executor:
            assert run(executor, "passes").result["kind"] == "pass"


def test_a_worker_that_cannot_start_is_a_bug_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such interpreter\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with Executor(1, forks=False) as executor, pytest.raises(HarnessError, match="no such interpreter"):
        run(executor, "passes")
