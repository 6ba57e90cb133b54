"""The state around the call back to torch's default: modes, precision, configs, environment, generators.

Gradients belong to it. A call under `no_grad` whose inputs ask for gradients is no simpler without `no_grad`:
then a backward comes along. So inputs lose their `requires_grad` in the same question.
"""

from __future__ import annotations

from torchrepro.minify.editing.surroundings import ambient_settings, gradient_settings, keep_needed
from torchrepro.minify.problem import Problem


def reset_ambient(problem: Problem) -> None:
    """Keep only the state that the failure needs."""
    settings = ambient_settings(problem.best)
    if problem.failure.places != {"grad"}:  # else it is a gradient that is wrong
        settings += gradient_settings(problem.best)
    keep_needed(problem, settings)
