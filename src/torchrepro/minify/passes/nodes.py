"""Cut ops out until each of those that are left is needed.

A cut op becomes an input that holds its recorded value, so the remaining ops do not depend on those removed.
This finds the failures that need several ops: two that are fused, two that only have to be in one graph, or a
whole chain along which an error grows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise

from torchrepro.cut.record_values import Recording
from torchrepro.cut.subgraph import piece, without_symbols
from torchrepro.cut.units import Unit, units_of
from torchrepro.cut.watched_values import first_wrong as first_among
from torchrepro.cut.watched_values import values_in, watched, watched_in
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro


def cut_nodes(problem: Problem) -> None:
    """Reduce the best to the fewest ops that still fail, with recorded values for the results of others."""
    if problem.best_size.ops <= 1:
        return
    recording = problem.recording()
    if recording is None:
        return
    static = without_symbols(problem.best)
    every = [node.name for node in static.graph.graph.nodes]
    if static is problem.best or not problem.fails(piece(static, recording, every)):
        static = problem.best
    units = units_of(static.graph.graph, recording.several)
    wrong = first_wrong(problem, static, recording)
    problem.minimise(
        units,
        lambda kept: piece(static, recording, [name for unit in kept for name in unit.nodes]),
        nearest=partial(_nearest, _neighbours(static, units)),
        suspected=[unit for unit in units if wrong in unit.nodes],
    )


def _neighbours(repro: Repro, units: Sequence[Unit]) -> dict[Unit, list[Unit]]:
    """Return, per unit, those that it reads or that read it; ops that read the same input count as well."""
    owner = {name: unit for unit in units for name in unit.nodes}
    found: dict[Unit, list[Unit]] = {unit: [] for unit in units}
    for node in repro.graph.graph.nodes:
        readers = [owner[user.name] for user in node.users if user.name in owner]
        own = owner.get(node.name)
        pairs = pairwise(readers) if node.op == "placeholder" else ((own, reader) for reader in readers)
        for one, other in pairs:
            if one is not None and one is not other:
                found[one].append(other)
                found[other].append(one)
    return found


def _nearest(
    neighbours: Mapping[Unit, Sequence[Unit]], needed: Sequence[Unit], rest: Sequence[Unit]
) -> list[Unit]:
    """Sort units by their distance in the graph; of two at the same distance the later one comes first."""
    steps = dict.fromkeys(needed, 0)
    frontier = deque(needed)
    while frontier:
        unit = frontier.popleft()
        for neighbour in neighbours[unit]:
            if neighbour not in steps:
                steps[neighbour] = steps[unit] + 1
                frontier.append(neighbour)
    place = {unit: index for index, unit in enumerate(rest)}
    return sorted(rest, key=lambda unit: (steps.get(unit, len(place) + 1), -place[unit]))


_FEW = 8
"""Up to so many ops, cutting finds the wrong one as quickly."""


def first_wrong(problem: Problem, repro: Repro, recording: Recording) -> str | None:
    """Return the name of the first node with a wrong value; None if all are right once all are returned.

    To return a value can change what is fused, and the failure can vanish: then the node is unknown.
    """
    if not problem.values_are_wrong or repro.ops <= _FEW:
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
