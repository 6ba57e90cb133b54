"""Judge several candidates in one compilation: graphs next to one another, or one graph on many inputs.

Measured on a 2-core machine: one `amin` takes 2.1 s to compile, thirty of them next to one another 2.7 s.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchrepro.execute.artefacts import GraphArtefact
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.judge.clone import clone_inputs
from torchrepro.judge.models import Phase, Phases, judge, verdict_of_comparison
from torchrepro.judge.rule import Rule
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Comparison, Kind, LeafComparison, Verdict
from torchrepro.state.ambient import applied_settings

OWNER = "torchrepro_graph"
"""The key of a graph's number in the `custom` metadata of nodes; torch copies it to what it makes of them."""
_ENOUGH = 4
"""Sets that fail: with so many, the op that is wrong is known."""


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Several graphs in one repro, and which of them, by number, each input and each output belongs to."""

    repro: Repro
    count: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def owner(self, leaf: LeafComparison) -> int | None:
        """Return the graph to which a result, a gradient or an input that was written to belongs."""
        return leaf.where.owner(self.outputs, self.inputs)

    def verdicts(self, verdict: Verdict) -> tuple[Verdict, ...] | None:
        """Return the verdict on each graph; None where the joint verdict cannot be split by graph."""
        if verdict.comparison is None or verdict.kind not in (Kind.PASS, Kind.MISMATCH, Kind.NON_FINITE):
            return None
        leaves: list[list[LeafComparison]] = [[] for _ in range(self.count)]
        for leaf in verdict.comparison.leaves:
            owner = self.owner(leaf)
            if owner is None:
                return None
            leaves[owner].append(leaf)
        return tuple(verdict_of_comparison(Comparison(tuple(own))) for own in leaves)


def can_be_joined(repro: Repro) -> bool:
    """Return whether copies of the graph can be joined into one graph that a compiler would be given."""
    if repro.place is Place.BEFORE_CAPTURE or repro.symbols or repro.earlier or repro.probe is not None:
        return False
    if any(True for _ in repro.graph.parameters()):
        return False
    if len(repro.graph.graph.find_nodes(op="placeholder")) != len(repro.inputs):
        return False  # the other placeholders take their defaults
    return _results(repro.graph.graph) is not None


def joined(repros: Sequence[Repro]) -> SideBySide:
    """Return one repro that computes all of them on their own inputs. Only graph and inputs may differ."""
    graph = Graph()
    copies: list[dict[Node, Node]] = [{} for _ in repros]
    inputs: list[int] = []
    for owner, repro in enumerate(repros):
        for node in repro.graph.graph.find_nodes(op="placeholder"):
            copies[owner][node] = graph.placeholder(f"{node.name}_{owner}")
            inputs.append(owner)
    results: list[Any] = []
    outputs: list[int] = []
    for owner, repro in enumerate(repros):
        known = copies[owner]
        for node in repro.graph.graph.nodes:
            if node.op not in ("placeholder", "output"):
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), known.__getitem__)
                known[node] = graph.create_node(node.op, node.target, args, kwargs)
                known[node].meta["custom"] = {OWNER: owner}
        own = _results(repro.graph.graph)
        assert own is not None, "asked of `can_be_joined`"
        results += [known.get(result, result) if isinstance(result, Node) else result for result in own]
        outputs += [owner] * len(own)
    graph.output(tuple(results))
    first = repros[0]
    whole = replace(
        first,
        graph=GraphModule(first.graph, graph, class_name="Graph"),
        # Clones, because candidates share inputs and one copy may write to what another one reads.
        inputs=tuple(value for repro in repros for value in clone_inputs(repro.inputs)),
    )
    return SideBySide(whole, len(repros), tuple(inputs), tuple(outputs))


def _results(graph: Graph) -> tuple[Any, ...] | None:
    """Return the outputs of a graph if they are one value or a flat sequence of values, else None."""
    returned: Any = graph.output_node().args[0]
    if isinstance(returned, Node):
        return (returned,)
    nested = (tuple, list, dict)
    flat = isinstance(returned, tuple | list) and not any(isinstance(item, nested) for item in returned)
    return tuple(returned) if flat else None


def verdicts_of_rounds(
    repro: Repro, *, own: int = 0, seconds: float | None = None, phase: Phase
) -> list[Verdict]:
    """Return a verdict for `repro.inputs` and for each later set in `repro.earlier`, in order.

    The first `own` entries of `repro.earlier` are earlier calls of the repro itself. Each set is judged
    independently: what one writes or raises does not affect the others. With a limit of `seconds`, no set
    starts after the limit, after a few that fail, or after a set that raises: an exception in the first is
    the verdict on all.
    """
    started = time.monotonic()
    single = replace(repro, earlier=repro.earlier[:own])
    verdicts: list[Verdict] = []
    sets = (repro.inputs, *repro.earlier[own:])
    failing = 0
    for verdict in _verdicts(single, sets, Phases(phase), steady=seconds is not None):
        verdicts.append(verdict)
        failing += verdict.fails
        if seconds is not None and (
            verdict.raised is not None or failing == _ENOUGH or time.monotonic() - started > seconds
        ):
            break
    return verdicts


def _verdicts(
    repro: Repro, sets: Sequence[tuple[Any, ...]], phase: Phases, *, steady: bool
) -> Iterator[Verdict]:
    """Yield a verdict for each set. Unless `steady`, run eager twice on the first set."""
    if repro.place is Place.BEFORE_CAPTURE or repro.earlier or repro.probe is not None:
        # Capture reads values, earlier calls leave state behind, and a probe compiles more than once: these
        # are compiled for each set.
        yield from (judge_repro(replace(repro, inputs=inputs), phase=phase) for inputs in sets)
        return
    compiled = GraphArtefact(repro, phase)
    rule = Rule(strict=repro.strict, tol=repro.tolerance)
    rng = repro.ambient.rng or None
    with applied_settings(repro.ambient):
        for number, inputs in enumerate(sets):
            trusted = steady or number > 0
            yield judge(compiled.subject(inputs), rule=rule, rng=rng, phase=phase, steady=trusted)
