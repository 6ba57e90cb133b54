"""Open ops that consist of others: higher-order ops, whose graphs are inlined, and composite ops.

If `layer_norm` fails because of its `rsqrt`, the repro is an `rsqrt`. An opened composite has more ops, so
it is searched in a separate problem, and only a result smaller than the best is adopted. Where the
higher-order op itself is the culprit, its graphs are shrunk inside it.
"""

from __future__ import annotations

from functools import partial

from torchrepro.edit.composites import expanded_everywhere
from torchrepro.edit.nested_graphs import branches, inlined, nested_calls
from torchrepro.edit.surgery import bypassed, operands_instead_in_bodies
from torchrepro.minify.passes.nodes import cut_nodes
from torchrepro.minify.passes.windows import single_windows
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro


def open_nested(problem: Problem) -> None:
    """Inline every higher-order op that the failure does not need; shrink the graphs of the others."""
    names = nested_calls(problem.best)
    if names:
        _inline(problem, names)
    best = problem.best
    instead = {spot: names[0] for spot, names in operands_instead_in_bodies(best).items()}
    problem.minimise(list(instead), partial(bypassed, best, instead))


def _inline(problem: Problem, names: list[str]) -> None:
    best = problem.best
    choices = branches(best)
    second = _second_branches(problem, choices) if choices else set()
    whole: list[Repro | None] = [inlined(best, names, second)]
    if choices:
        whole.append(inlined(best, names, choices.keys() - second))
    if problem.accept_first(whole) is None and len(names) > 1:
        problem.leave_out(names, lambda best, gone: inlined(best, gone, second) or best)


def _second_branches(problem: Problem, choices: dict[str, str]) -> set[str]:
    """Return the nodes that took their second branch in the recorded run."""
    placeholders = [node.name for node in problem.best.graph.graph.nodes if node.op == "placeholder"]
    known = dict(zip(placeholders, problem.best.inputs, strict=False))
    recording = problem.recording()
    if recording is not None:
        computed = [name for name in choices.values() if recording.knows(name)]
        known = {name: recording.result(name) for name in computed} | known
    return {name for name, predicate in choices.items() if predicate in known and not bool(known[predicate])}


_FEW_OPS = 8
_FEW_TO_CUT = 3
"""With more ops, all of them needed, an opened one is at best one op again: 31 queries without a gain."""


def open_composites(problem: Problem) -> None:
    """Search for the culprit among the ops that composite ops consist of."""
    if problem.best_size.ops > _FEW_OPS or problem.best.symbols:
        return
    for opened in expanded_everywhere(problem.best):
        side = problem.search_in(opened)
        single_windows(side)
        several = 1 < problem.best_size.ops <= _FEW_TO_CUT
        if side.best is opened and several and problem.fails(opened):
            cut_nodes(side)
        if side.best is not opened and problem.accept(side.best):
            return
