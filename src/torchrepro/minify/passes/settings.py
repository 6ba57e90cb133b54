"""Settings around the graph back to torch's defaults: ambient state, compiler options, earlier calls.

Gradients belong to the ambient state. A call under `no_grad` whose inputs ask for gradients is no simpler
without `no_grad`: then a backward comes along. So inputs lose their `requires_grad` in the same query.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchrepro.edit.settings import (
    Setting,
    ambient_settings,
    call_settings,
    compiler_settings,
    gradient_settings,
    without,
)
from torchrepro.minify.problem import Problem


def reset_ambient(problem: Problem) -> None:
    """Keep only the modes, precision, configs, environment and generators that the failure needs."""
    settings = ambient_settings(problem.best)
    if problem.failure.places != {"grad"}:  # else it is a gradient that is wrong
        settings += gradient_settings(problem.best)
    _keep_needed(problem, settings)


def reset_compiler(problem: Problem) -> None:
    """Keep only the compiler options that the failure needs: mode, options, dynamic, fullgraph."""
    _keep_needed(problem, compiler_settings(problem.best))


def shorten_sequence(problem: Problem) -> None:
    """Keep only the earlier calls of the compiled function that the failure needs."""
    _keep_needed(problem, call_settings(problem.best))


def _keep_needed(problem: Problem, settings: Sequence[Setting]) -> None:
    """Remove every setting that the failure does not need; a single query if it needs none."""
    best = problem.best
    if settings:
        problem.minimise(settings, lambda kept: without(best, [s for s in settings if s not in kept]))
