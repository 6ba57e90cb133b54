"""A cheap oracle for tests of passes: a function on the repro says whether it fails. Nothing is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from observing import ObserveHere

from torchrepro.engine.queries import Queries
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict


class SyntheticOracle(ObserveHere):
    """Answers one candidate after the other, and counts."""

    workers = 1

    def __init__(self, fails: Callable[[Repro], bool], kind: Kind = Kind.MISMATCH) -> None:
        self._fails = fails
        self._kind = kind
        self.asked: list[Repro] = []

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        for index, candidate in enumerate(candidates):
            self.asked.append(candidate)
            yield index, Verdict(self._kind if self._fails(candidate) else Kind.PASS)


def problem_of(repro: Repro, fails: Callable[[Repro], bool], kind: Kind = Kind.MISMATCH) -> Problem:
    assert fails(repro)
    return Problem(Queries(repro, Verdict(kind), SyntheticOracle(fails, kind)))


def traced(function: Callable[..., Any], *inputs: Any) -> Repro:
    """A repro of torch-level calls."""
    return Repro(torch.fx.symbolic_trace(function), inputs)


def targets(repro: Repro) -> list[str]:
    """The names of what a graph calls, in order."""
    found = [node.target for node in repro.graph.graph.nodes if node.op.startswith("call")]
    return [target if isinstance(target, str) else getattr(target, "__name__", "") for target in found]
