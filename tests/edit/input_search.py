"""A cheap oracle for the passes over inputs: it runs eager, as the judge does, and asks a condition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from observing import ObserveHere

from torchrepro.engine.queries import Queries
from torchrepro.judge.clone import clone_inputs
from torchrepro.minify.passes.shapes import shrink_dimensions
from torchrepro.minify.passes.simplest import guess_simplest
from torchrepro.minify.passes.values import ordinary_tensors, plain_values, usual_dtypes
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Comparison, Difference, Kind, LeafComparison, Verdict
from torchrepro.state.ambient import applied_modes

PASSES = (ordinary_tensors, shrink_dimensions, plain_values, usual_dtypes)
Condition = Callable[[Repro], bool | tuple[int, ...]]
"""Whether it fails; the index of the worst element of the first result, where there is one."""


@dataclass
class ConditionOracle(ObserveHere):
    """Counts what it is asked. What eager refuses is invalid, as it is for the judge."""

    condition: Condition
    workers: int = 1
    asked: list[Repro] = field(default_factory=list)

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        for index, candidate in enumerate(candidates):
            self.asked.append(candidate)
            yield index, self.verdict(candidate)

    def verdict(self, repro: Repro) -> Verdict:
        if not runs(repro):
            return Verdict(Kind.INVALID)
        found = self.condition(repro)
        if found is False:
            return Verdict(Kind.PASS)
        if found is True:
            return Verdict(Kind.MISMATCH)
        leaf = LeafComparison("out", Difference.VALUE, index=found)
        return Verdict(Kind.MISMATCH, comparison=Comparison((leaf,)))


def runs(repro: Repro) -> bool:
    for inputs in (repro.inputs, *repro.earlier):
        try:
            with applied_modes(repro.ambient):
                repro.graph(*clone_inputs(inputs))
        except (RuntimeError, IndexError, TypeError, ValueError):
            return False
    return True


def search_inputs(repro: Repro, condition: Condition, *, workers: int = 1) -> tuple[Problem, int]:
    """Run the passes over inputs until they find nothing more; the problem, and how often it was asked."""
    oracle = ConditionOracle(condition, workers)
    problem = Problem(Queries(repro, oracle.verdict(repro), oracle))
    assert problem.queries.verdict.fails
    guess_simplest(problem)
    before = None
    while problem.best is not before:
        before = problem.best
        for run in PASSES:
            run(problem)
    assert problem.failure.shown_by(oracle.verdict(problem.best))
    return problem, len(oracle.asked)


def first(repro: Repro) -> torch.Tensor:
    tensor = repro.inputs[0]
    assert isinstance(tensor, torch.Tensor)
    return tensor
