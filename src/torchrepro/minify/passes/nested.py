"""Nested graphs: the ops in them in the place of the higher-order op, so that other passes can cut there.

Where the higher-order op itself is guilty, its graphs are shrunk in their place.
"""

from __future__ import annotations

from torchrepro.cut.record_values import NotRecorded
from torchrepro.edit.nested_bodies import branches, bypasses, inlined, nested_calls, without_ops
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Place, Repro


def open_nested(problem: Problem) -> None:
    """Do without every higher-order op that the failure does not need; shrink the graphs of the others."""
    if problem.best.place is Place.BEFORE_CAPTURE:
        return
    names = nested_calls(problem.best)
    if names:
        _inline(problem, names)
    passed = bypasses(problem.best)
    if passed:
        best = problem.best
        problem.minimise(
            passed, lambda kept: without_ops(best, [item for item in passed if item not in kept])
        )


def _inline(problem: Problem, names: list[str]) -> None:
    best = problem.best
    choices = branches(best)
    second = _second_branches(problem, choices) if choices else set()
    whole: list[Repro | None] = [inlined(best, names, second)]
    if choices:
        whole.append(inlined(best, names, choices.keys() - second))
    if problem.accept_first(whole) is None and len(names) > 1:
        problem.minimise(
            names, lambda kept: inlined(best, [n for n in names if n not in kept], second) or best
        )


def _second_branches(problem: Problem, choices: dict[str, str]) -> set[str]:
    """The nodes that took their second branch when they were run."""
    best = problem.best
    placeholders = [node.name for node in best.graph.graph.nodes if node.op == "placeholder"]
    given = dict(zip(placeholders, best.inputs, strict=False))
    recording = problem.recording()
    found = set()
    for name, predicate in choices.items():
        try:
            value = (
                given[predicate] if predicate in given or recording is None else recording.result(predicate)
            )
        except (NotRecorded, KeyError):
            continue
        if not bool(value):
            found.add(name)
    return found
