"""Cut ops out until each of those that are left is needed.

A cut op becomes an input that holds its recorded value, so what is left does not depend on what has gone.
Here are found the failures that need several ops: two that are fused, two that only have to be in one graph,
or a whole chain along which an error grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from torch.fx import Node

from torchrepro.cut.record_values import Recording
from torchrepro.cut.subgraph import Unit, piece, units_of, without_symbols
from torchrepro.cut.watched_values import first_wrong as first_among
from torchrepro.cut.watched_values import values_in, watched, watched_in
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind


def cut_nodes(problem: Problem) -> None:
    """The fewest ops that still fail, with recorded values for all that they read from the others."""
    if problem.best_size.ops <= 1:
        return
    recording = problem.recording()
    if recording is None:
        return
    static = without_symbols(problem.best)
    if static is problem.best or not problem.fails(_all_of(static, recording)):
        static = problem.best
    units = units_of(static.graph.graph, recording.several)
    wrong = first_wrong(problem, static, recording)
    distance = _Distance(static, units)
    problem.minimise(
        units,
        lambda kept: piece(static, recording, [name for unit in kept for name in unit.nodes]),
        nearest=distance.nearest,
        suspected=[unit for unit in units if wrong in unit.nodes],
    )


def _all_of(repro: Repro, recording: Recording) -> Repro | None:
    return piece(repro, recording, [node.name for node in repro.graph.graph.nodes])


class _Distance:
    """How far units are from one another, in steps from op to op."""

    def __init__(self, repro: Repro, units: Sequence[Unit]) -> None:
        owner = {name: unit for unit in units for name in unit.nodes}
        self._neighbours: dict[Unit, list[Unit]] = {unit: [] for unit in units}
        for node in repro.graph.graph.nodes:
            for operand in node.all_input_nodes:
                self._connect(owner.get(operand.name), owner.get(node.name))
        self._readers(repro.graph.graph.nodes, owner)

    def nearest(self, needed: Sequence[Unit], rest: Sequence[Unit]) -> list[Unit]:
        """By the number of steps; of two at the same distance the later one, which is often the reader."""
        steps = dict.fromkeys(needed, 0)
        frontier = list(needed)
        while frontier:
            found = []
            for unit in frontier:
                for neighbour in self._neighbours[unit]:
                    if neighbour not in steps:
                        steps[neighbour] = steps[unit] + 1
                        found.append(neighbour)
            frontier = found
        place = {unit: index for index, unit in enumerate(rest)}
        return sorted(rest, key=lambda unit: (steps.get(unit, len(place) + 1), -place[unit]))

    def _readers(self, nodes: Iterable[Node], owner: dict[str, Unit]) -> None:
        """Ops that read the same input are near one another as well."""
        for node in nodes:
            if node.op == "placeholder":
                readers = [owner[user.name] for user in node.users if user.name in owner]
                for one, other in pairwise(readers):
                    self._connect(one, other)

    def _connect(self, one: Unit | None, other: Unit | None) -> None:
        if one is not None and other is not None and one is not other:
            self._neighbours[one].append(other)
            self._neighbours[other].append(one)


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
