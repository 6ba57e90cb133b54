"""Many sets of inputs for one compilation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from torchrepro.cut.batches import verdicts_of_rounds
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Kind


def _doubled(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x * 2,)


compilations: list[int] = []


def wrong_below_zero(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    """A compiler that is wrong where all is negative, raises where all is 3, and counts what it compiles."""
    compilations.append(1)

    def run(x: torch.Tensor) -> Any:
        if bool((x == 3).all()):
            raise ValueError("three")
        return (x * 2 if bool((x >= 0).all()) else x * 3,)

    return run


REPRO = Repro(
    torch.fx.symbolic_trace(_doubled), (torch.ones(2),), compiler=Compiler(f"{__name__}:wrong_below_zero")
)


def kinds(*numbers: float, seconds: float | None = None) -> list[Kind]:
    compilations.clear()
    sets = [(torch.full((2,), number),) for number in numbers]
    batch = replace(REPRO, inputs=sets[0], earlier=tuple(sets[1:]))
    found = verdicts_of_rounds(batch, seconds=seconds, phase=lambda phase: None)
    return [verdict.kind for verdict in found]


def test_one_compilation_answers_for_every_set_and_none_disturbs_the_next() -> None:
    assert kinds(1, -1, 3, -2, 0) == [Kind.PASS, Kind.MISMATCH, Kind.RUN_ERROR, Kind.MISMATCH, Kind.PASS]
    assert len(compilations) == 1


def test_with_a_time_limit_nothing_is_run_after_a_set_that_raises() -> None:
    assert kinds(1, 3, -2, seconds=60.0) == [Kind.PASS, Kind.RUN_ERROR]


def test_with_a_time_limit_a_few_sets_that_fail_are_enough() -> None:
    numbers = (1, -1, 1, -2, -3, -4, -5, 1)
    assert len(kinds(*numbers)) == len(numbers)
    assert kinds(*numbers, seconds=60.0) == [Kind.PASS, Kind.MISMATCH, Kind.PASS, *[Kind.MISMATCH] * 3]


def test_with_no_time_left_the_first_set_is_judged_all_the_same() -> None:
    assert kinds(-1, 1, 1, seconds=0.0) == [Kind.MISMATCH]


def test_a_call_before_is_repeated_for_each_set() -> None:
    batch = replace(REPRO, earlier=((torch.ones(2),), (torch.full((2,), -1.0),)))
    compilations.clear()
    found = verdicts_of_rounds(batch, own=1, phase=lambda phase: None)
    assert [verdict.kind for verdict in found] == [Kind.PASS, Kind.MISMATCH]
    assert len(compilations) == 2
