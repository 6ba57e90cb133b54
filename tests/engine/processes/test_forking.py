"""Forked children: whatever happens in one is an outcome, and nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from executing import children, descriptors, nothing_left_behind, processes_with, run, soon, task_of

from torchrepro.engine.processes.executor import Executor
from torchrepro.engine.processes.fresh_process import verdict_of
from torchrepro.engine.processes.limits import MARK, end_leftovers
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.verdict import Kind

HERE = Path(__file__).parent


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executor]:
    # The test runner may have a thread of its own, which no child needs.
    monkeypatch.setattr("torchrepro.engine.processes.executor.why_not_fork", lambda: "")
    with nothing_left_behind(tmp_path_factory.mktemp("scratch")), Executor(workers=2) as executor:
        yield executor


def test_the_job_gets_the_repro_and_its_result_comes_back(executor: Executor) -> None:
    assert run(executor, "ops", number=41).result == {"ops": 1, "sum": 6.0, "payload": {"number": 41}}


def test_what_is_printed_is_no_answer_but_evidence(executor: Executor) -> None:
    outcome = run(executor, "prints")
    verdict = verdict_of(outcome, 60)
    assert (verdict.kind, verdict.notes) == (Kind.PASS, ("",))
    assert "a complaint" in outcome.output_tail
    assert "a word of a program" in outcome.output_tail


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGFPE", "SIGBUS", "SIGILL", "SIGTERM", "SIGINT"])
def test_a_death_by_signal_is_a_crash(executor: Executor, name: str) -> None:
    verdict = verdict_of(run(executor, "dies", signal=name), 60)
    assert (verdict.kind, verdict.signal) == (Kind.CRASH, name)
    assert "last words" in verdict.stderr_tail


def test_a_kill_by_the_system_is_out_of_memory(executor: Executor) -> None:
    assert verdict_of(run(executor, "dies", signal="SIGKILL"), 60).kind is Kind.OUT_OF_MEMORY


def test_an_exit_is_a_crash(executor: Executor) -> None:
    assert verdict_of(run(executor, "quits"), 60).signal == "exit 3"


def test_a_death_before_the_compiler_ran_is_not_its_fault(executor: Executor) -> None:
    assert verdict_of(run(executor, "dies", signal="SIGSEGV", phase="eager"), 60).kind is Kind.INVALID


def test_a_hang_ends_at_its_deadline(executor: Executor) -> None:
    outcome = run(executor, "sleeps", seconds=600, time_limit=0.3)
    assert verdict_of(outcome, 0.3).kind is Kind.HANG
    assert 0.3 <= outcome.seconds < 5


@pytest.mark.parametrize("how", ["torch", "python"])
def test_more_memory_than_allowed_is_out_of_memory(executor: Executor, how: str) -> None:
    limited = {"how": how, "memory_limit": 200 << 20, "phase": "run"}
    outcome = run(executor, "takes_memory", bytes=1 << 30, **limited)
    assert verdict_of(outcome, 60).kind is Kind.OUT_OF_MEMORY
    assert verdict_of(run(executor, "takes_memory", bytes=50 << 20, **limited), 60).kind is Kind.PASS


def test_too_little_memory_for_eager_says_nothing_about_the_compiler(executor: Executor) -> None:
    outcome = run(executor, "takes_memory", how="torch", bytes=1 << 30, memory_limit=200 << 20, phase="eager")
    assert verdict_of(outcome, 60).kind is Kind.INVALID


@pytest.mark.parametrize("job", ["own_bug", "no_data"])
def test_a_bug_of_ours_is_no_verdict(executor: Executor, job: str) -> None:
    with pytest.raises(HarnessError):
        verdict_of(run(executor, job), 60)


def test_an_error_of_the_user_keeps_its_fact_and_next_step(executor: Executor) -> None:
    with pytest.raises(TorchReproError) as caught:
        verdict_of(run(executor, "user_error"), 60)
    assert (caught.value.fact, caught.value.next_step) == ("a fact", "a step")


def test_a_job_that_does_not_exist_is_a_bug_of_ours(executor: Executor) -> None:
    with pytest.raises(AttributeError):
        run(executor, "no_such_job")


@pytest.mark.slow
def test_a_process_that_cannot_be_forked_any_more_has_workers(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    forked = task_of("sleeps", seconds=0.2)
    executor.start(forked)
    monkeypatch.setattr("torchrepro.engine.processes.executor.why_not_fork", lambda: "it has a thread")
    spawned = [task_of("surroundings") for _ in range(2)]
    for task in spawned:
        executor.start(task)
    ended = dict(executor.wait() for _ in range(3))
    assert ended[forked].result["ended"]
    assert {run(executor, "surroundings").result["pid"] for _ in range(2)} <= {
        ended[task].result["pid"] for task in spawned
    }  # used again


def test_tasks_run_at_the_same_time_and_come_back_as_they_end(executor: Executor, tmp_path: Path) -> None:
    # The first one ends when the others have, however slow this machine is.
    others_ended = tmp_path / "others_ended"
    tasks = [
        task_of("waits_for", path=str(others_ended)),
        *(task_of("sleeps", seconds=seconds) for seconds in (0.3, 0.1)),
    ]
    for task in tasks:
        executor.start(task)
    ended = [executor.wait() for _ in tasks[1:]]
    others_ended.touch()
    ended.append(executor.wait())
    assert [task for task, _ in ended] == [tasks[1], tasks[2], tasks[0]]
    second, third, first = (outcome.result for _, outcome in ended)
    assert first["began"] < third["ended"]  # at the same time
    assert third["began"] >= second["ended"]  # no more than two at a time


def test_the_time_of_a_task_that_has_to_wait_for_a_worker_begins_later(executor: Executor) -> None:
    for _ in range(4):
        executor.start(task_of("sleeps", seconds=0.4, time_limit=0.7))
    assert not any(executor.wait()[1].timed_out for _ in range(4))


def test_an_answer_that_nobody_has_waited_for_is_not_late(executor: Executor) -> None:
    executor.start(task_of("passes", time_limit=0.5))
    time.sleep(0.8)
    assert executor.wait()[1].result["kind"] == "pass"


@pytest.mark.parametrize("then", ["return", "hang"])
def test_programs_that_a_job_has_started_end_with_it(executor: Executor, tmp_path: Path, then: str) -> None:
    mark = uuid.uuid4().hex
    payload = {"mark": mark, "then": then, "started": str(tmp_path / "started")}
    outcome = run(executor, "starts_programs", time_limit=2.5 if then == "hang" else 60, **payload)
    assert outcome.timed_out == (then == "hang")
    assert soon(lambda: processes_with(mark) == 0)


def test_a_task_that_is_called_off_ends_with_all_that_it_has_started(
    executor: Executor, tmp_path: Path
) -> None:
    mark, started = uuid.uuid4().hex, tmp_path / "started"
    running = task_of("starts_programs", mark=mark, started=str(started))
    other = task_of("sleeps", seconds=0.2)
    waiting = task_of("sleeps", seconds=600)
    for task in (running, other, waiting):
        executor.start(task)
    assert soon(started.exists)
    for task in (running, waiting, task_of("passes")):
        executor.cancel(task)
    assert executor.wait()[0] is other
    assert soon(lambda: processes_with(mark) == 0)
    with pytest.raises(HarnessError):
        executor.wait()


def test_a_grandchild_that_holds_the_pipe_does_not_hold_up_the_verdict(executor: Executor) -> None:
    outcome = run(executor, "leaves_a_fork_that_holds_the_pipe", time_limit=30)
    assert verdict_of(outcome, 30).signal == "SIGABRT"
    assert outcome.seconds < 5


def test_a_child_that_closes_its_pipe_and_goes_on_is_a_hang(executor: Executor) -> None:
    outcome = run(executor, "closes_its_pipe_and_goes_on", time_limit=0.5)
    assert verdict_of(outcome, 0.5).kind is Kind.HANG


def test_temporary_files_of_a_job_and_of_its_programs_go_with_it(executor: Executor) -> None:
    paths = run(executor, "leaves_temporary_files").result["paths"]
    assert not any(map(os.path.exists, paths))


def test_an_interruption_ends_what_is_under_way_and_the_executor_can_go_on(executor: Executor) -> None:
    before = children()
    executor.start(task_of("sleeps", seconds=600))
    executor.start(task_of("sleeps", seconds=600))
    sleeping = children() - before
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    # A shell that runs the tests in the background ignores it.
    before_that = signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            executor.wait()
    finally:
        signal.signal(signal.SIGINT, before_that)
    assert not sleeping & children()
    assert run(executor, "passes").result["kind"] == "pass"


def test_a_child_has_a_session_signals_and_threads_of_its_own(executor: Executor) -> None:
    found = run(executor, "surroundings").result
    assert found["session"] == found["pid"] != os.getpid()
    assert found["handles_interrupts"] is False
    assert found["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)


def test_a_hundred_tasks_leave_no_descriptor_open(executor: Executor) -> None:
    run(executor, "passes")
    before = descriptors()
    for _ in range(100):
        executor.start(task_of("passes"))
    assert {executor.wait()[1].result["kind"] for _ in range(100)} == {"pass"}
    assert descriptors() == before


@pytest.mark.slow
def test_a_compiler_that_is_ended_leaves_no_half_written_file_to_the_next_candidate(
    executor: Executor, tmp_path: Path
) -> None:
    half_written = tmp_path / "header.gch"
    task = task_of("precompiles", to=str(half_written))
    executor.start(task)
    assert soon(half_written.exists, 60)
    executor.cancel(task)
    assert not half_written.exists()


@pytest.mark.slow
def test_what_kill_9_of_the_parent_leaves_is_found_by_its_mark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mark, started = uuid.uuid4().hex, tmp_path / "started"
    program = textwrap.dedent(f"""
        from executing import task_of
        from torchrepro.engine.processes.executor import Executor
        executor = Executor(2)
        executor.start(task_of("starts_programs", mark={mark!r}, started={str(started)!r}))
        executor.wait()
    """)
    environ = {
        **os.environ,
        "PYTHONPATH": str(HERE),
        "TMPDIR": str(tmp_path),
        "OPENBLAS_NUM_THREADS": "1",
        MARK: mark,
    }
    parent = subprocess.Popen([sys.executable, "-c", program, mark], env=environ)
    try:
        assert soon(started.exists, 60)
    finally:
        parent.kill()
        parent.wait()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert end_leftovers(mark) >= 1
    assert soon(lambda: processes_with(mark) == 0)
    assert not any(tmp_path.glob("torchrepro-*"))


def _distrust() -> None:
    raise TorchReproError("forks of this process do not work")


@pytest.mark.parametrize(("job", "doubted"), [("dies", True), ("sleeps", True), ("passes", False)])
def test_forks_are_tried_only_if_the_first_that_compiles_dies_or_is_late(
    monkeypatch: pytest.MonkeyPatch, job: str, doubted: bool
) -> None:
    monkeypatch.setattr("torchrepro.engine.processes.executor.why_not_fork", lambda: "")
    monkeypatch.setattr("torchrepro.engine.processes.executor._LATE_SECONDS", 0.5)
    payload = {"dies": {"signal": "SIGSEGV"}, "sleeps": {"seconds": 20}, "passes": {}}[job]
    with Executor(1, prove_forks=_distrust) as executor:
        assert run(executor, "ops").result, "no proof: nothing is compiled"
        if not doubted:
            assert run(executor, job).result
            assert run(executor, "dies", signal="SIGSEGV").signal, "a crash of the candidate"
            return
        with pytest.raises(TorchReproError, match="do not work"):
            run(executor, job, **payload)
