"""The strategy, read from top to bottom: guesses first, then every pass until none of them finds anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchrepro.minify.problem import Problem
from torchrepro.minify.registry import Pass
from torchrepro.nouns.errors import SearchStopped
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict


@dataclass(frozen=True, eq=False)
class Found:
    """The smallest repro that was found."""

    repro: Repro
    verdict: Verdict
    stopped: str = ""
    """Why the search ended before nothing more could be taken away; empty where it did not."""


def search(problem: Problem, passes: Sequence[Pass]) -> Found:
    """Make the problem's repro as small as the passes can. What was found so far outlives an early end."""
    try:
        _run_all(problem, passes)
    except SearchStopped as stop:
        return Found(problem.best, problem.best_verdict, stopped=str(stop))
    return Found(problem.best, problem.best_verdict)


def _run_all(problem: Problem, passes: Sequence[Pass]) -> None:
    for row in passes:
        with problem.running(row.name):
            row.run(problem)
    # Smaller inputs can make an op superfluous and the other way round. What is asked again is known.
    repeated = [row for row in passes if not row.once]
    while True:
        before = problem.best
        for row in repeated:
            with problem.running(row.name):
                row.run(problem)
        if problem.best is before:
            return
