"""The first op whose result is wrong while everything that it reads is right: one compilation tells."""

from __future__ import annotations

import re

from torchrepro.cutting.recording import Recording
from torchrepro.cutting.subgraph import with_all_results
from torchrepro.minify.problem import Problem
from torchrepro.repro import Repro
from torchrepro.verdict import Kind

_OUTPUT = re.compile(r"^out\[(\d+)\]")
_FEW = 8
"""Ops that are told apart as quickly by trying."""


def first_wrong(problem: Problem, repro: Repro, recording: Recording) -> str | None:
    """The name of its node, where values are wrong; None where all are right once they can all be seen.

    To return a value can change what is fused, and the failure can vanish: then nothing is known.
    """
    values_are_wrong = problem.failure.signature.kind in (Kind.MISMATCH, Kind.NON_FINITE)
    if not values_are_wrong or repro.ops <= _FEW:
        return None
    watched = with_all_results(repro, recording)
    if watched is None or not problem.fails(watched[0]):
        return None
    verdict = problem.verdict_on(watched[0])
    if verdict is None or verdict.comparison is None:
        return None
    found = (_OUTPUT.match(leaf.path) for leaf in verdict.comparison.differing)
    wrong = {watched[1][int(match[1])] for match in found if match is not None}
    for node in repro.graph.graph.nodes:
        if node.name in wrong and not any(operand.name in wrong for operand in node.all_input_nodes):
            return str(node.name)
    return None
