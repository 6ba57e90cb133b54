"""Find the one op that fails by itself, on the values recorded in the original.

Most failures are due to one op. Each op with its recorded operands is a separate graph, and in a model of
repeated layers few of them differ. Wrong values are found with one compilation of all of them in one graph,
run on the values of every layer; other failures name a suspect, there at the latest, or else are bisected.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torchrepro.cut.failing_windows import failing_ones
from torchrepro.cut.hints import suspects
from torchrepro.cut.subgraph import without_symbols
from torchrepro.cut.windows import alone, by_ambient, windows_of, wrong_ones
from torchrepro.edit.composites import expanded_everywhere
from torchrepro.minify.passes.simplest import plainest_of
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro


def single_windows(problem: Problem) -> None:
    """Make the best one op, if one op alone fails."""
    if problem.best_size.ops <= 1:
        return
    recording = problem.recording()
    if recording is None:
        return
    repro = without_symbols(problem.best)
    windows = windows_of(repro, recording)
    named = suspects(windows, problem.best_verdict, repro, recording)
    if _accept(problem, [alone(repro, recording, window.instances[0], window) for window in named]):
        return
    for group in by_ambient([window for window in windows if window not in named]):
        if problem.values_are_wrong:
            parts = problem.queries.parts_of(repro)
            for found in wrong_ones(repro, recording, group, problem.rounds, parts=parts):
                if _accept(problem, [alone(repro, recording, *pair) for pair in found]):
                    return
            continue
        asked = partial(problem.first_failing, in_order=False), problem.queries.failure_announced
        for pair in failing_ones(repro, recording, group, *asked, parts=problem.workers + 1):
            if _accept(problem, [alone(repro, recording, *pair)]):
                return


def _accept(problem: Problem, ops: Sequence[Repro | None]) -> bool:
    """Adopt the first op that fails. One that cannot be opened is tried with everything plain before."""
    guesses: list[Repro | None] = []
    for one in ops:
        if one is not None and not expanded_everywhere(one):
            guesses += plainest_of(problem, one)
        guesses.append(one)
    return problem.accept_first(guesses) is not None
