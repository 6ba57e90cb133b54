"""Open composite ops: if `layer_norm` fails because of its `rsqrt`, the repro is an `rsqrt`.

The ops inside are more than before, so they are searched on the side, and only what is smaller in the end is
adopted. If the opened graph does not fail, the composite itself is what the compiler gets wrong.
"""

from __future__ import annotations

from torchrepro.edit.composites import expanded_everywhere
from torchrepro.minify.passes.nodes import cut_nodes
from torchrepro.minify.passes.windows import single_windows
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Place
from torchrepro.nouns.verdict import Kind

_FEW_OPS = 8
_FEW_TO_CUT = 3
"""Of more ops, all of them needed, one that is opened is at best one op again: 31 questions for nothing."""
_OF_VALUES = (Kind.MISMATCH, Kind.NON_FINITE)


def open_composites(problem: Problem) -> None:
    """Look for the guilty op among those of which the ops are made."""
    if problem.best.place is Place.BEFORE_CAPTURE or problem.best_size.ops > _FEW_OPS or problem.best.symbols:
        return
    # One compilation tells of wrong values where they come from; other failures are bisected, so that it is
    # better to know first that there is something to find.
    told_at_once = problem.failure.signature.kind in _OF_VALUES
    for opened in expanded_everywhere(problem.best):
        if not told_at_once and not problem.fails(opened):
            continue
        side = problem.search_in(opened)
        single_windows(side)
        several = 1 < problem.best_size.ops <= _FEW_TO_CUT
        if side.best is opened and several and problem.fails(opened):
            cut_nodes(side)
        if side.best is not opened and problem.accept(side.best):
            return
