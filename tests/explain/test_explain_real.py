"""Failures of the installed torch, explained with a real compiler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from explain_oracles import explain

from torchrepro.cut.batches import verdicts_of_rounds
from torchrepro.engine.queries import Queries
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.explain import Budget, Explanation
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict


class InProcess:
    """Judges here: these failures leave the process alive."""

    workers = 1

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        for index, candidate in enumerate(candidates):
            yield index, judge_repro(candidate)

    def rounds(self, repro: Repro, *, own: int = 0, seconds: float | None = None) -> list[Verdict]:
        return verdicts_of_rounds(repro, own=own, seconds=seconds, phase=lambda phase: None)


def explained(function: Any, *inputs: Any, budget: Budget) -> Explanation:
    repro = Repro(torch.fx.symbolic_trace(function), inputs)
    verdict = judge_repro(repro)
    assert verdict.fails

    return explain(Queries(repro, verdict, InProcess(), observer=InProcess()), budget=budget)


def sentences(found: Explanation) -> dict[str, str]:
    return {fact.subject: fact.sentence for fact in found.facts}


@pytest.mark.slow
@pytest.mark.thorough
def test_the_smallest_of_small_integers() -> None:
    """pytorch #191499: lanes of a vector that hold nothing take part in `amin`."""
    found = explained(
        lambda x: (x.amin(),),
        torch.full((16,), 20, dtype=torch.uint8),
        budget=Budget(queries=11, seconds=120),
    )
    told = sentences(found)
    assert told["x"] == "any value of x other than 0 fails (10 tried), 0 does not"
    assert told["x.dim 0"].startswith("any size >= ")
    assert told["dtype"].startswith("uint8 and int8 alike, ")
    assert told["backend"].startswith("inductor's own: ")
    assert found.neighbour is not None
    assert not judge_repro(found.neighbour.repro).fails
    assert found.queries <= 11


@pytest.mark.thorough
def test_large_values_of_acosh() -> None:
    found = explained(
        lambda x: (torch.acosh(x),), torch.full((16,), 3e38), budget=Budget(queries=16, seconds=120)
    )
    told = sentences(found)
    assert told["x"].startswith("any value of x above 1.8")
    assert "float64 passes" in told["dtype"]
    assert told["dynamic shapes"] == "dynamic and static shapes alike"


@pytest.mark.thorough
def test_softshrink_of_nan_fails_with_dynamic_shapes_as_well() -> None:
    """Inductor folds `x * 0` in both; a dynamic graph without inputs for its sizes would hide it."""
    found = explained(
        lambda x: (torch.nn.functional.softshrink(x),),
        torch.full((16,), float("nan")),
        budget=Budget(queries=16, seconds=120),
    )
    assert sentences(found)["x"] == "only nan as value of x fails, no other (27 tried)"
    assert sentences(found)["dynamic shapes"] == "dynamic and static shapes alike"
