"""Replace a whole call of the user's code by a graph captured from it, if that fails by itself.

No pass can cut the user's own code; a graph can be cut. Where no graph fails alone, capture itself or the
code between the graphs is the culprit, and the call stays.
"""

from __future__ import annotations

from dataclasses import replace

from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Place


def take_captured(problem: Problem) -> None:
    """Adopt the smallest captured graph that fails as the call does."""
    best = problem.best
    if best.place is not Place.BEFORE_CAPTURE:
        return
    graphs = sorted(problem.queries.observer.graphs(best), key=lambda graph: graph.ops)
    # Judged as the call was: by the same rule, with or without a backward run.
    problem.accept_first(
        [
            replace(graph, backward=best.backward, strict=best.strict, tolerance=best.tolerance)
            for graph in graphs
        ]
    )
