"""How the original fails is established before anything is cut."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from torchrepro.bundle.read import read_manifest
from torchrepro.engine.baseline import RUNS, Failure, establish, measure, recorded_here
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import (
    Blame,
    Comparison,
    Difference,
    Kind,
    LeafComparison,
    Signature,
    Stage,
    Verdict,
)
from torchrepro.script.save_bundle import save_bundle

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


def test_one_run_that_fails_is_enough() -> None:
    script = Script(FAILS)
    found = establish(REPRO, script)
    assert (found.runs, found.failing, found.repeats) == (1, 1, 1)
    assert script.runs == 1


def test_a_quick_original_is_repeated_where_passing_variations_prove_something() -> None:
    script = Script(FAILS)
    found = establish(REPRO, script, repeat_quick=True)
    assert (found.runs, found.failing, found.repeats) == (RUNS, RUNS, 1)
    assert script.runs == RUNS


def test_a_long_run_that_fails_as_recorded_is_not_repeated() -> None:
    script = Script(replace(FAILS, seconds=60.0))
    assert establish(recorded(FAILS), script, repeat_quick=True).runs == 1
    assert script.runs == 1


def test_a_result_that_fails_in_every_run_is_not_flaky() -> None:
    script = Script(FAILS)
    assert measure(REPRO, FAILS, script).repeats == 1
    assert script.runs == RUNS - 1


def test_runs_that_disagree_give_a_rate() -> None:
    found = measure(REPRO, FAILS, Script(PASSES, FAILS, PASSES, FAILS, PASSES, FAILS))
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


def test_a_failure_recorded_here_needs_no_run(tmp_path: Path) -> None:
    leaf = LeafComparison(
        "out", Difference.NON_FINITE, blamed=Blame.COMPILED, index=(1,), max_abs=math.inf, max_rel=math.nan
    )
    verdict = Verdict(Kind.NON_FINITE, Stage.BACKEND, comparison=Comparison((leaf,)), notes=("a note",))
    bundle = save_bundle(recorded(verdict), tmp_path / "bundle", verdict=verdict)
    found = recorded_here(read_manifest(bundle))
    assert found is not None
    assert (found.runs, found.repeats) == (0, 1)
    assert Failure.of(found.verdict) == Failure.of(verdict)
    assert found.verdict.to_dict()["comparison"]["differing"][0]["max_abs"] == math.inf


@pytest.mark.parametrize("change", [{"torch": "9.9"}, {"cpu": "abacus"}, {"cxx": "g++ (Debian) 99"}])
def test_a_failure_recorded_elsewhere_has_to_be_seen_here(tmp_path: Path, change: dict[str, str]) -> None:
    manifest = read_manifest(save_bundle(recorded(FAILS), tmp_path / "bundle", verdict=FAILS))
    elsewhere = msgspec.structs.replace(manifest, environment=replace(manifest.environment, **change))
    assert recorded_here(manifest) is not None
    assert recorded_here(elsewhere) is None


def test_a_record_is_no_proof_where_code_of_the_user_is_missing(tmp_path: Path) -> None:
    manifest = read_manifest(save_bundle(recorded(FAILS), tmp_path / "bundle", verdict=FAILS))
    lost = replace(manifest.ambient, left_out=("inductor.post_grad_custom_post_pass",))
    assert recorded_here(msgspec.structs.replace(manifest, ambient=lost)) is None
