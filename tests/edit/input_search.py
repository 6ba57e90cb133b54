"""A cheap oracle for the passes over inputs: it runs eager, as the judge does, and asks a condition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from observing import ObserveHere

from torchrepro.engine.queries import Queries
from torchrepro.judge.clone import clone_inputs
from torchrepro.minify.passes.shapes import shrink_dimensions
from torchrepro.minify.passes.simplest import guess_simplest
from torchrepro.minify.passes.values import ordinary_tensors, plain_values, usual_dtypes
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Comparison, Difference, Kind, LeafComparison, Verdict
from torchrepro.state.ambient import applied_modes

PASSES = (ordinary_tensors, shrink_dimensions, plain_values, usual_dtypes)
Condition = Callable[[Repro], bool | tuple[int, ...]]
"""Whether it fails; the index of the worst element of the first result, where there is one."""


@dataclass
class ConditionOracle(ObserveHere):
    """Counts what it is asked. What eager refuses is invalid, as it is for the judge."""

    condition: Condition
    workers: int = 1
    asked: list[Repro] = field(default_factory=list)

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        for index, candidate in enumerate(candidates):
            self.asked.append(candidate)
            yield index, self.verdict(candidate)

    def verdict(self, repro: Repro) -> Verdict:
        if not runs(repro):
            return Verdict(Kind.INVALID)
        parts = separate(repro)
        leaves = []
        for number, part in enumerate(parts):
            path = f"out[{number}]" if len(parts) > 1 else "out"
            found = self.condition(part)
            if found is True:
                return Verdict(Kind.MISMATCH)
            leaves.append(
                LeafComparison(path)
                if found is False
                else LeafComparison(path, Difference.VALUE, index=found)
            )
        comparison = Comparison(tuple(leaves))
        return Verdict(Kind.MISMATCH if comparison.differing else Kind.PASS, comparison=comparison)


def separate(repro: Repro) -> list[Repro]:
    """Return the graphs that are next to one another in a graph, each with its own inputs."""
    graph = repro.graph.graph
    results = graph.output_node().all_input_nodes
    found = []
    for result in results:
        part, copies, inputs = torch.fx.Graph(), {}, []
        wanted = {result}
        for node in reversed(graph.nodes):
            wanted.update(node.all_input_nodes if node in wanted else ())
        given = iter(repro.inputs)
        for node in graph.nodes:
            value = next(given) if node.op == "placeholder" else None
            if node in wanted:
                copies[node] = part.node_copy(node, copies.__getitem__)
                inputs += [value] if node.op == "placeholder" else []
        part.output(copies[result])
        found.append(replace(repro, graph=torch.fx.GraphModule(repro.graph, part), inputs=tuple(inputs)))
    apart = sum(len(part.inputs) for part in found) == len(repro.inputs)
    return found if len(found) > 1 and apart else [repro]


def runs(repro: Repro) -> bool:
    for inputs in (repro.inputs, *repro.earlier):
        try:
            with applied_modes(repro.ambient):
                repro.graph(*clone_inputs(inputs))
        except (RuntimeError, IndexError, TypeError, ValueError):
            return False
    return True


def search_inputs(repro: Repro, condition: Condition, *, workers: int = 1) -> tuple[Problem, int]:
    """Run the passes over inputs until they find nothing more; the problem, and how often it was asked."""
    oracle = ConditionOracle(condition, workers)
    problem = Problem(Queries(repro, oracle.verdict(repro), oracle))
    assert problem.queries.verdict.fails
    guess_simplest(problem)
    before = None
    while problem.best is not before:
        before = problem.best
        for run in PASSES:
            run(problem)
    assert problem.failure.shown_by(oracle.verdict(problem.best))
    return problem, len(oracle.asked)


def first(repro: Repro) -> torch.Tensor:
    tensor = repro.inputs[0]
    assert isinstance(tensor, torch.Tensor)
    return tensor
