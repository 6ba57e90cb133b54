"""What was asked of the compiler back to its default: mode, options, dynamic, fullgraph."""

from __future__ import annotations

from torchrepro.minify.editing.surroundings import compiler_settings, keep_needed
from torchrepro.minify.problem import Problem


def reset_compiler(problem: Problem) -> None:
    """Keep only the options that the failure needs."""
    keep_needed(problem, compiler_settings(problem.best))
