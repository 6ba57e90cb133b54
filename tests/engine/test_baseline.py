"""How the original fails is established before anything is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from torchrepro.engine.baseline import RUNS, establish
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Signature, Verdict

REPRO = Repro(torch.fx.symbolic_trace(lambda x: x.sin()), (torch.ones(2),))
FAILS = Verdict(Kind.CRASH, signal="SIGSEGV")
PASSES = Verdict(Kind.PASS)


class Script:
    """Gives the listed verdicts, then the last one for ever."""

    workers = 2

    def __init__(self, *verdicts: Verdict) -> None:
        self.verdicts = list(verdicts)
        self.runs = 0

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        for index in range(len(candidates)):
            yield index, self.verdicts[min(self.runs, len(self.verdicts) - 1)]
            self.runs += 1


def recorded(verdict: Verdict) -> Repro:
    return replace(REPRO, expected=Signature.of(verdict))


def test_three_runs_that_agree_are_enough() -> None:
    script = Script(FAILS)
    found = establish(REPRO, script)
    assert (found.runs, found.failing, found.repeats) == (RUNS, RUNS, 1)
    assert script.runs == RUNS


def test_a_long_run_that_fails_as_recorded_is_not_repeated() -> None:
    script = Script(replace(FAILS, seconds=60.0))
    assert establish(recorded(FAILS), script).runs == 1
    assert script.runs == 1


def test_runs_that_disagree_give_a_rate() -> None:
    found = establish(REPRO, Script(FAILS, PASSES, FAILS, PASSES, FAILS, PASSES, FAILS))
    assert found.is_flaky
    assert found.runs > RUNS
    assert found.failing == found.runs - 3
    assert (1 - found.failing / found.runs) ** found.repeats <= 0.01, (
        "a wrong pass is rarer than one in a hundred"
    )


def test_one_recorded_as_failing_is_run_more_often_before_it_counts_as_healthy() -> None:
    found = establish(recorded(FAILS), Script(PASSES, PASSES, PASSES, PASSES, FAILS, PASSES))
    assert found.failing == 1
    assert found.repeats > 10


def test_what_does_not_fail_cannot_be_minified() -> None:
    with pytest.raises(TorchReproError, match="does not fail here"):
        establish(recorded(FAILS), Script(PASSES))


def test_another_failure_than_the_recorded_one_is_said() -> None:
    found = establish(recorded(Verdict(Kind.HANG)), Script(FAILS))
    assert found.verdict is FAILS
    assert "otherwise" in found.note


def test_the_recorded_failure_is_preferred_to_a_more_frequent_one() -> None:
    other = Verdict(Kind.CRASH, signal="SIGABRT")
    found = establish(recorded(FAILS), Script(other, FAILS, other))
    assert found.verdict is FAILS
    assert found.is_flaky
