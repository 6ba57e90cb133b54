"""A process of its own: whatever happens in it, the parent gets an answer and nobody is left behind."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from torchrepro.engine.processes.child import Outcome
from torchrepro.engine.processes.fresh_process import judged_in_isolation, run_isolated, verdict_of
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.verdict import Kind

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


ENVIRON = {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}


def run(job: str, time_limit: float = 60.0, **payload: object) -> Outcome:
    return run_isolated(f"dying_jobs:{job}", payload, time_limit=time_limit, environ=ENVIRON)


def processes_with(mark: str) -> int:
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return sum(mark in line for line in found.stdout.splitlines())


def test_the_result_comes_back_and_prints_do_not_disturb_it() -> None:
    outcome = run("answer", number=41)
    assert outcome.result == {"got": 42}
    assert "noise on standard output" in outcome.output_tail


def test_a_segfault_is_a_crash_with_its_signal_phase_and_last_words() -> None:
    outcome = run("segfault", phase="run")
    verdict = verdict_of(outcome, 60)
    assert (verdict.kind, verdict.signal) == (Kind.CRASH, "SIGSEGV")
    assert "running the compiled function" in verdict.summary
    assert "last words" in verdict.stderr_tail


@pytest.mark.parametrize("phase", ["build", "eager"])
def test_a_segfault_before_the_compiler_ran_is_not_its_fault(phase: str) -> None:
    assert verdict_of(run("segfault", phase=phase), 60).kind is Kind.INVALID


def test_an_abort_is_a_crash() -> None:
    assert verdict_of(run("abort"), 60).signal == "SIGABRT"


def test_a_kill_from_outside_is_out_of_memory() -> None:
    assert verdict_of(run("killed"), 60).kind is Kind.OUT_OF_MEMORY


def test_an_exit_in_the_compiler_is_a_crash() -> None:
    verdict = verdict_of(run("quits"), 60)
    assert (verdict.kind, verdict.signal) == (Kind.CRASH, "exit 3")


def test_a_hang_ends_at_the_limit_and_its_children_with_it() -> None:
    mark = uuid.uuid4().hex
    started = time.monotonic()
    outcome = run("hang", time_limit=3, phase="compile", mark=mark)
    assert verdict_of(outcome, 3).kind is Kind.HANG
    assert time.monotonic() - started < 20
    deadline = time.monotonic() + 5
    while processes_with(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_with(mark) == 0


def test_a_child_that_closes_its_pipe_and_goes_on_is_a_hang_too() -> None:
    outcome = run("closes_everything_and_goes_on", time_limit=4)
    assert verdict_of(outcome, 4).kind is Kind.HANG


def test_a_hang_in_eager_cannot_be_tested() -> None:
    outcome = run("hang", time_limit=3, phase="eager", mark=uuid.uuid4().hex)
    with pytest.raises(TorchReproError, match="--time-limit"):
        verdict_of(outcome, 3)


def test_an_error_of_the_user_keeps_its_fact_and_next_step() -> None:
    with pytest.raises(TorchReproError) as caught:
        verdict_of(run("user_error"), 60)
    assert (caught.value.fact, caught.value.next_step) == ("a fact", "a step")


def test_a_bug_of_ours_is_no_verdict() -> None:
    with pytest.raises(HarnessError):
        verdict_of(run("own_bug"), 60)


def test_a_program_that_ends_itself_is_told_so() -> None:
    with pytest.raises(TorchReproError, match=r"ends itself \(SystemExit: 7\)") as caught:
        verdict_of(run("exits"), 60)
    assert not isinstance(caught.value, HarnessError)


def test_if_the_reference_kills_the_process_it_is_judged_without_one() -> None:
    verdict = judged_in_isolation("dying_jobs:passing", {}, time_limit=60, environ=ENVIRON)
    assert verdict.kind is Kind.PASS
    assert any("float64" in note and "SIGABRT" in note for note in verdict.notes)


def test_a_flood_of_output_does_not_block() -> None:
    assert run("floods").result == "done"


def test_the_job_finds_an_empty_standard_input() -> None:
    assert run("reads_stdin").result == ""
