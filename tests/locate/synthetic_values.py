"""A failing graph whose culprit op is known, and an oracle that counts what would have been compiled."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch.fx import Graph, GraphModule, Node

from torchrepro.cut.record_values import Recording, observed_values
from torchrepro.engine.processes.child import Outcome
from torchrepro.locate.context import Inquiry
from torchrepro.locate.watched_graph import Seen, Sighting, Watching
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Blame, Comparison, Difference, Kind, LeafComparison, Verdict

HARMLESS = (torch.sin, torch.cos, torch.tanh, torch.neg)


def random_graph(ops: int, culprit: int, seed: int) -> Repro:
    """A graph of small ops, most of which read the one before and some an earlier one; one is a relu."""
    chance = random.Random(seed)
    graph = Graph()
    values = [graph.placeholder("x")]
    for place in range(ops):
        near = values[-1] if chance.random() < 0.8 else chance.choice(values)
        if place == culprit:
            # What comes last has to depend on it.
            values.append(graph.call_function(torch.relu, (values[-1],)))
        elif chance.random() < 0.3 or place == culprit + 1:
            values.append(graph.call_function(torch.add, (values[-1], near)))
        else:
            values.append(graph.call_function(chance.choice(HARMLESS), (near,)))
    ends = [node for node in values if not node.users]
    graph.output(tuple(ends))
    return Repro(GraphModule({}, graph), (torch.zeros(2),))


def guilty_node(repro: Repro) -> Node | None:
    return next((node for node in repro.graph.graph.nodes if node.target is torch.relu), None)


def wrong_nodes(repro: Repro) -> set[str]:
    """The culprit op and all that depends on it."""
    found: set[str] = set()
    for node in repro.graph.graph.nodes:
        if node.target is torch.relu or any(operand.name in found for operand in node.all_input_nodes):
            found.add(node.name)
    return found


def outputs_of(repro: Repro) -> list[Node]:
    returned: Any = repro.graph.graph.output_node().args[0]
    return list(returned)


@dataclass
class CountingOracle:
    """Fails where the relu is. Nothing is compiled, all that would be is counted."""

    kind: Kind = Kind.MISMATCH
    needs: int = 1
    """Ops that have to be in the graph beside one another for the failure to show."""
    shows_with: int = 1 << 30
    """Values that may be watched before the failure vanishes."""
    workers: int = 2
    asked: int = 0
    watched: list[int] = field(default_factory=list)

    def fails(self, repro: Repro) -> bool:
        return guilty_node(repro) is not None and repro.ops >= self.needs

    def verdict(self, repro: Repro) -> Verdict:
        if not self.fails(repro):
            return Verdict(Kind.PASS)
        if self.kind is not Kind.MISMATCH:
            return Verdict(self.kind, signal="SIGSEGV")
        wrong = wrong_nodes(repro)
        return Verdict(
            self.kind,
            comparison=Comparison(
                tuple(
                    LeafComparison(f"out[{place}]", Difference.VALUE, blamed=Blame.COMPILED, max_rel=1.0)
                    for place, node in enumerate(outputs_of(repro))
                    if node.name in wrong
                )
            ),
        )

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        for index, candidate in enumerate(candidates):
            self.asked += 1
            yield index, self.verdict(candidate)

    def record(self, repro: Repro) -> Recording:
        return observed_values(repro, limit=1 << 30)

    def rounds(self, repro: Repro, **options: Any) -> Sequence[Verdict]:
        self.asked += 1
        return [self.verdict(repro)]

    def ran(self, job: str, repro: Repro, **payload: Any) -> Outcome:
        assert job == "torchrepro.locate.op_jobs:watch"
        self.asked += 1
        names: list[str] = payload["names"]
        self.watched.append(len(names))
        wrong = wrong_nodes(repro) if self.fails(repro) and len(names) <= self.shows_with else set[str]()
        culprit = guilty_node(repro) if wrong else None
        returned = outputs_of(repro)[: len(outputs_of(repro)) - len(names)]
        seen = tuple(
            Seen(name, name in wrong, self._is_guilty(name, culprit, names), 0.0, float(name in wrong))
            for name in names
        )
        elsewhere = tuple(f"out[{place}]" for place, node in enumerate(returned) if node.name in wrong)
        verdict = Verdict(Kind.MISMATCH if wrong else Kind.PASS)
        return Outcome(result=msgspec.to_builtins(Sighting(verdict, seen, elsewhere)))

    def _is_guilty(self, name: str, culprit: Node | None, names: Sequence[str]) -> bool | None:
        """Known of an op whose operands are watched as well, inputs of the graph aside."""
        if culprit is None or name != culprit.name:
            return None
        operands = [operand.name for operand in culprit.all_input_nodes if operand.op != "placeholder"]
        return True if all(operand in names for operand in operands) else None


def inquiry_on(repro: Repro, oracle: CountingOracle) -> Inquiry:
    return Inquiry(repro, oracle.verdict(repro), oracle)  # type: ignore[arg-type]


def watching_on(repro: Repro, oracle: CountingOracle, at_a_time: int = 1 << 30) -> Watching:
    found = Watching.of(inquiry_on(repro, oracle))
    assert found is not None
    found.capacity = at_a_time * 8
    return found
