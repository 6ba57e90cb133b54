"""Fewer outputs: of the graph those that show the failure, of an op with several results the one in use."""

from __future__ import annotations

from collections.abc import Sequence

from torchrepro.edit.outputs import Output, is_flat, outputs_of, returning, taken_apart, with_single_results
from torchrepro.minify.problem import Problem


def drop_outputs(problem: Problem) -> None:
    """Return only what shows the failure, in a plain tuple."""
    best = problem.best
    outputs = outputs_of(best)
    if len(outputs) < 2:
        if not is_flat(best):
            problem.accept(returning(best, outputs))
        return
    if problem.accept(returning(best, _wrong(problem, outputs))):
        best, outputs = problem.best, outputs_of(problem.best)
    if len(outputs) > 1:
        problem.minimise(outputs, lambda kept: returning(best, kept))


def _wrong(problem: Problem, outputs: Sequence[Output]) -> list[Output]:
    """Return the output that differs most, by the comparison; the last one if that is unknown.

    Gradients and inputs that are written to do not tell from which output they come.
    """
    comparison = problem.best_verdict.comparison
    worst = comparison.worst.path if comparison is not None and comparison.worst is not None else ""
    named = [output for output in outputs if worst == output.path or worst.startswith(f"{output.path}[")]
    return (named or list(outputs))[-1:]


def single_results(problem: Problem) -> None:
    """Replace ops with several results, of which one is used, by ops that compute that one alone."""
    problem.leave_out(taken_apart(problem.best), with_single_results)
