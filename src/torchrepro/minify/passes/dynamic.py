"""Dynamic dimensions to static: every symbol becomes the number that it was, or all that can."""

from __future__ import annotations

from dataclasses import replace

from torchrepro.edit.fixed_sizes import numbers_of, with_numbers
from torchrepro.minify.problem import Problem


def make_static(problem: Problem) -> None:
    """Keep only the symbols that the failure needs."""
    best = problem.best
    known = numbers_of(best)
    names = [symbol.name for symbol in best.symbols if symbol.name in known]
    if not names:
        return
    static = with_numbers(best, names)
    # A reader who sees no symbol expects none to be asked for.
    plain = replace(static, compiler=replace(static.compiler, dynamic=None))
    if problem.accept_first([plain] if best.compiler.dynamic is None else [plain, static]) is not None:
        return
    problem.minimise(names, lambda kept: with_numbers(best, [name for name in names if name not in kept]))
