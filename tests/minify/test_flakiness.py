"""Flakiness is measured on the result; what was decided by too few runs is asked again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from synthetic import SyntheticOracle, targets, traced

from torchrepro.engine.baseline import Original
from torchrepro.engine.queries import Queries
from torchrepro.minify.problem import Problem
from torchrepro.minify.registry import passes, search
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict

FAILS, PASSES = Verdict(Kind.CRASH, signal="SIGSEGV"), Verdict(Kind.PASS)


class Sometimes:
    """Fails in one run of three; a graph without `sin` never does."""

    workers = 1

    def __init__(self) -> None:
        self._turns = itertools.cycle([PASSES, FAILS, PASSES])

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        for index, candidate in enumerate(candidates):
            names = [node.target for node in candidate.graph.graph.nodes]
            yield index, next(self._turns) if torch.sin in names else PASSES


def test_a_candidate_that_passed_by_chance_is_asked_again_once_the_failure_is_known_to_be_flaky() -> None:
    problem = Problem(Queries(traced(lambda x: torch.sin(torch.cos(x)), torch.ones(3)), FAILS, Sometimes()))
    smaller = traced(lambda x: torch.sin(x), torch.ones(3))
    healthy = traced(lambda x: torch.cos(x), torch.ones(3))
    assert not problem.accept(smaller), "it passes in its first run"
    problem.measure_flakiness()
    assert problem.queries.repeats > 5
    assert problem.accept(smaller)
    assert not problem.fails(healthy)
    assert "fails in" in problem.queries.baseline.notes[0]


def test_what_fails_in_every_run_is_repeated_no_further() -> None:
    class Always(Sometimes):
        def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
            return ((index, FAILS) for index in range(len(candidates)))

    problem = Problem(Queries(traced(lambda x: torch.sin(x), torch.ones(3)), FAILS, Always()))
    problem.measure_flakiness()
    assert problem.queries.repeats == 1


def test_the_original_is_run_only_after_a_query_in_vain() -> None:
    """Only its record says that it fails: a smaller candidate that fails is as good."""
    runs: list[str] = []

    def establish() -> Original:
        runs.append("original")
        return Original(FAILS, 1, 1)

    def searched(fails: Callable[[Repro], bool]) -> None:
        repro = traced(lambda x: torch.sin(torch.cos(x)), torch.ones(3))
        oracle = SyntheticOracle(fails, Kind.CRASH)
        rows = [row for row in passes() if not row.once]
        search(Problem(Queries(repro, FAILS, oracle), establish=establish), rows)

    searched(lambda repro: "sin" in targets(repro))
    assert runs == []
    searched(lambda repro: repro.ops == 2 and repro.inputs[0].numel() == 3)
    assert runs == ["original"]
