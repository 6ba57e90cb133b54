"""Reset what surrounds the graph to torch's defaults: ambient state, options, earlier calls, dynamic sizes.

Gradients belong to the ambient state. A call under `no_grad` whose inputs require gradients is no simpler
without `no_grad`: then there is a backward call. So inputs lose their `requires_grad` in the same query.
"""

from __future__ import annotations

from dataclasses import replace

from torchrepro.edit.settings import (
    ambient_settings,
    call_settings,
    compiler_settings,
    gradient_settings,
    without,
)
from torchrepro.edit.symbolic_sizes import numbers_of, with_numbers
from torchrepro.minify.problem import Problem


def reset_ambient(problem: Problem) -> None:
    """Keep only the modes, precision, configs, environment and generators that the failure needs."""
    settings = ambient_settings(problem.best)
    if problem.failure.places != {"grad"}:  # else it is a gradient that is wrong
        settings += gradient_settings(problem.best)
    problem.leave_out(settings, without)


def reset_compiler(problem: Problem) -> None:
    """Keep only the compiler options that the failure needs: mode, options, dynamic, fullgraph."""
    problem.leave_out(compiler_settings(problem.best), without)


def shorten_sequence(problem: Problem) -> None:
    """Keep only the earlier calls of the compiled function that the failure needs."""
    problem.leave_out(call_settings(problem.best), without)


def make_static(problem: Problem) -> None:
    """Keep only the symbols that the failure needs."""
    best = problem.best
    known = numbers_of(best)
    names = [symbol.name for symbol in best.symbols if symbol.name in known]
    if not names:
        return
    static = with_numbers(best, names)
    # Without symbols, `dynamic=True` would be confusing.
    plain = replace(static, compiler=replace(static.compiler, dynamic=None))
    if problem.accept_first([plain] if best.compiler.dynamic is None else [plain, static]) is not None:
        return
    problem.leave_out(names, with_numbers)
