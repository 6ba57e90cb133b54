"""Bypass an op: replace its result by one of its operands.

Cutting an op gives its readers the recorded value, so a failure that needs a path from one op to another
keeps all ops between the two. Bypassing ops shortens the path: first those that change neither size nor
dtype, then, where few ops are left, those that change the size, as long as their readers still run.
"""

from __future__ import annotations

from functools import partial
from itertools import product

from torchrepro.edit.surgery import bypassed, operands_instead
from torchrepro.minify.problem import Problem

_CHOICES = 2
"""How many operands are tried in place of an op."""
_FEW_OPS = 20
"""With more, hardly any set of ops that change sizes can be bypassed at once, and queries are wasted."""


def pass_ops_by(problem: Problem) -> None:
    """Reduce the best to the fewest ops that still fail, with the others replaced by their operands."""
    if problem.best_size.ops <= 1:
        return
    for same_size, choice in product((True, False), range(_CHOICES)):
        best = problem.best
        if same_size or best.ops <= _FEW_OPS:
            operands = operands_instead(best, same_size=same_size)
            instead = {spot: names[choice] for spot, names in operands.items() if choice < len(names)}
            if instead:
                problem.minimise(list(instead), partial(bypassed, best, instead))
