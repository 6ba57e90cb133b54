"""What becomes of a search process that dies, and who learns of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from torchrepro import Minified, MinifySettings, Repro, minify_bundle, save_bundle
from torchrepro.engine.processes.child import Outcome
from torchrepro.engine.search import process
from torchrepro.engine.search.process import SearchRequest
from torchrepro.nouns.errors import HarnessError, TorchReproError


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return save_bundle(Repro(torch.fx.symbolic_trace(lambda x: (x + 1,)), (torch.ones(3),)), tmp_path / "b")


@pytest.fixture
def outcomes(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Outcome], list[SearchRequest]]:
    """Search processes that end like this, one after the other, and what they were asked."""
    ends: list[Outcome] = []
    asked: list[SearchRequest] = []

    def run_search(request: SearchRequest, **_: Any) -> Outcome:
        asked.append(request)
        return ends.pop(0)

    monkeypatch.setattr(process, "run_search", run_search)
    return ends, asked


def result(**changes: Any) -> dict[str, Any]:
    numbers = ("start_ops", "start_inputs", "start_elements", "ops", "inputs", "elements", "queries")
    words = dict.fromkeys(("original", "directory", "bundle", "script", "signature"), "")
    plain = Minified(
        **dict.fromkeys(numbers, 1), **words, original_runs=3, seconds=1.0, reproduces=True, **changes
    )
    return plain.to_dict()


def test_one_that_dies_of_warming_up_is_started_again_without(
    bundle: Path, outcomes: tuple[list[Outcome], list[SearchRequest]]
) -> None:
    ends, asked = outcomes
    ends += [Outcome(phase="warm", signal="SIGSEGV"), Outcome(result=result())]
    assert minify_bundle(bundle).minimal
    assert [request.warm for request in asked] == [True, False]


def test_one_that_dies_later_is_a_bug_of_ours_and_the_best_is_named(
    bundle: Path, outcomes: tuple[list[Outcome], list[SearchRequest]]
) -> None:
    outcomes[0].extend([Outcome(phase="search", signal="SIGSEGV", output_tail="the last words")] * 2)
    with pytest.raises(HarnessError, match=r"died \(SIGSEGV\)\nthe last words"):
        minify_bundle(bundle)
    best = bundle.with_name("b.minified") / "best"
    best.mkdir()
    with pytest.raises(HarnessError, match=f"the best so far is in {best}"):
        minify_bundle(bundle)


def test_one_that_was_killed_is_nobodys_bug(
    bundle: Path, outcomes: tuple[list[Outcome], list[SearchRequest]]
) -> None:
    outcomes[0].append(Outcome(phase="search", signal="SIGKILL"))
    with pytest.raises(TorchReproError, match="the same command continues"):
        minify_bundle(bundle)


def test_what_it_reports_as_the_users_error_is_raised_as_one(
    bundle: Path, outcomes: tuple[list[Outcome], list[SearchRequest]]
) -> None:
    error = {"kind": "user", "fact": "it does not fail here", "next_step": "look", "traceback": ""}
    outcomes[0].append(Outcome(error=error))
    with pytest.raises(TorchReproError, match="it does not fail here; look"):
        minify_bundle(bundle)


def test_a_wrong_pass_is_answered_before_anything_is_started(
    bundle: Path, outcomes: tuple[list[Outcome], list[SearchRequest]]
) -> None:
    with pytest.raises(TorchReproError, match="did you mean 'windows'"):
        minify_bundle(bundle, MinifySettings(passes=("window",)))
    assert outcomes[1] == []


def test_starting_over_is_said_in_the_result(
    bundle: Path, outcomes: tuple[list[Outcome], list[SearchRequest]]
) -> None:
    outcomes[0].append(Outcome(result=result()))
    outcomes[0].append(Outcome(result=result(notes=("a note of its own",))))
    assert minify_bundle(bundle).notes == ()
    notes = minify_bundle(bundle, MinifySettings(oracle="true")).notes
    assert notes == ("starting over: the oracle has changed", "a note of its own")
