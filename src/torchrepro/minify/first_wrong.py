"""The first op whose result is wrong while everything that it reads is right: one compilation tells."""

from __future__ import annotations

from torchrepro.cut.record_values import Recording
from torchrepro.cut.watched_values import first_wrong as first_among
from torchrepro.cut.watched_values import values_in, watched, watched_in
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind

_FEW = 8
"""Ops that are told apart as quickly by trying."""


def first_wrong(problem: Problem, repro: Repro, recording: Recording) -> str | None:
    """The name of its node, where values are wrong; None where all are right once they can all be seen.

    To return a value can change what is fused, and the failure can vanish: then nothing is known.
    """
    values_are_wrong = problem.failure.signature.kind in (Kind.MISMATCH, Kind.NON_FINITE)
    if not values_are_wrong or repro.ops <= _FEW:
        return None
    names = values_in(repro.graph.graph, recording)
    seen = watched(repro, names, recording)
    if not problem.fails(seen):
        return None
    verdict = problem.verdict_on(seen)
    if verdict is None or verdict.comparison is None:
        return None
    leaves = watched_in(verdict.comparison, seen, names)
    return first_among(repro.graph.graph, {name for name, leaf in leaves.items() if not leaf.same})
