"""The proof of the search: whatever fails, in the end nothing more can go, and it took few questions."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from random_graphs import Case, CaseOracle, cases, single_steps

from torchrepro.engine.queries import Queries
from torchrepro.minify.problem import Problem
from torchrepro.minify.registry import passes, search
from torchrepro.nouns.repro import Repro


def minified(case: Case, workers: int = 1) -> tuple[Repro, int]:
    oracle = CaseOracle(case, workers)
    problem = Problem(Queries(case.repro, oracle.verdict(case.repro), oracle))
    assert not search(problem, passes())
    assert problem.queries.asked >= oracle.queries
    return problem.best, problem.queries.asked


def bound(case: Case) -> float:
    """The committed figure: 20, and for each thing that the failure needs a bisection and six more.

    For one op, a pass over everything else is the last of them.
    """
    needed = sum(condition.items for condition in case.conditions)
    return 20 + (needed + 1) * (math.log2(case.repro.ops) + 6)


def assert_minimal(case: Case, workers: int) -> None:
    found, queries = minified(case, workers)
    oracle = CaseOracle(case)
    assert oracle.verdict(found).fails
    for step, smaller in single_steps(found):
        assert not oracle.verdict(smaller).fails, (step, found.graph.code, [t.shape for t in found.inputs])
    assert queries <= bound(case) * (1 if workers == 1 else 2)


@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases(max_ops=25))
def test_nothing_more_can_go(case: Case) -> None:
    assert_minimal(case, workers=1)


@pytest.mark.thorough
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_nothing_more_can_go_from_large_graphs(workers: int) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=cases(max_ops=60))
    def check(case: Case) -> None:
        assert_minimal(case, workers)

    check()
