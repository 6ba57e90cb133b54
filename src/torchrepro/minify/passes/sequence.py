"""The calls that came before on the same compiled function: without those that the failure does not need."""

from __future__ import annotations

from torchrepro.minify.editing.surroundings import call_settings, keep_needed
from torchrepro.minify.problem import Problem


def shorten_sequence(problem: Problem) -> None:
    """Keep only the earlier calls that the failure needs."""
    keep_needed(problem, call_settings(problem.best))
