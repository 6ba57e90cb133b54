from __future__ import annotations

import pytest
from corpora import FAILS, LOST, OTHERWISE, PASSES
from hypothesis import given
from hypothesis import strategies as st

from torchrepro.corpus.findings import Outcome, Result, State, outcome_of, state_of, state_of_two
from torchrepro.engine.other_python import Replayed

REPLAYS = st.lists(st.sampled_from([FAILS, OTHERWISE, PASSES, LOST]), min_size=1, max_size=6)


def result(*replays: Replayed, repeat: int = 1) -> Result | None:
    outcome = outcome_of(replays, repeat)
    return None if outcome is None else outcome.result


def test_fixed_needs_two_silent_runs():
    assert result(PASSES) is None
    assert result(PASSES, PASSES) is Result.PASSES


def test_a_failure_after_a_silent_run_is_flaky_and_says_how_often():
    outcome = outcome_of([PASSES, FAILS], 1)
    assert outcome is not None
    assert (outcome.result, outcome.failed, outcome.runs) == (Result.FLAKY, 1, 2)


def test_what_cannot_run_is_asked_twice_and_is_never_a_pass():
    assert result(LOST) is None
    assert result(LOST, LOST) is Result.CANNOT_RUN
    assert result(PASSES, LOST, LOST) is Result.CANNOT_RUN
    assert result(LOST, FAILS) is Result.FAILS


def test_another_signature_fails_otherwise():
    assert result(OTHERWISE) is Result.FAILS_OTHERWISE
    assert result(OTHERWISE, FAILS, repeat=2) is Result.FLAKY


@given(REPLAYS, st.integers(1, 3))
def test_no_outcome_claims_more_than_its_replays_show(replays: list[Replayed], repeat: int):
    outcome = outcome_of(replays, repeat)
    ran = [each for each in replays if not each.cannot_run]
    if outcome is None:
        return
    if outcome.result is Result.PASSES:
        assert len(ran) >= max(2, repeat)
        assert all(each is PASSES for each in ran)
    elif outcome.result is Result.FAILS:
        assert all(each is FAILS for each in ran)
    elif outcome.result is Result.CANNOT_RUN:
        assert LOST in replays
    assert outcome.runs == len(ran)


PASSED, FAILED, OTHER = (
    Outcome(Result.PASSES, "pass"),
    Outcome(Result.FAILS, "mismatch"),
    Outcome(Result.FAILS_OTHERWISE, "crash"),
)
KILLED, SHAKY = Outcome(Result.CANNOT_RUN, reason="SIGKILL"), Outcome(Result.FLAKY, "mismatch", 1, 2)


@pytest.mark.parametrize(
    ("old", "new", "state"),
    [
        (PASSED, FAILED, State.REGRESSED),
        (PASSED, OTHER, State.REGRESSED),
        (FAILED, PASSED, State.FIXED),
        (FAILED, FAILED, State.STILL_FAILS),
        (FAILED, OTHER, State.FAILS_OTHERWISE),
        (OTHER, PASSED, State.BASELINE_ONLY),
        (PASSED, PASSED, State.PASSES),
        (KILLED, FAILED, State.CANNOT_RUN),
        (PASSED, KILLED, State.CANNOT_RUN),
        (SHAKY, PASSED, State.FLAKY),
    ],
)
def test_two_versions_are_compared(old: Outcome, new: Outcome, state: State):
    assert state_of_two(old, new) is state


def test_a_bundle_that_was_recorded_as_healthy_can_only_regress():
    assert state_of(PASSED, recorded_fails=False) is State.PASSES
    assert state_of(FAILED, recorded_fails=False) is State.REGRESSED
    assert state_of(PASSED, recorded_fails=True) is State.FIXED
