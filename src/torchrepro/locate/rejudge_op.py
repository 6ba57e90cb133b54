"""Is an op wrong for what it was given? It is judged on the operands that the compiled graph had.

Nothing is compiled for it. An error that was inherited, however large it has grown on the way, is in the
operands; what is left is the op's own. So error that accumulates is told apart from an op that is wrong, in
the middle of a fused kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from torchrepro.cut.record_values import Kept, NotRecorded, Recording, observed_values
from torchrepro.cut.subgraph import piece
from torchrepro.cut.units import Unit, ambient_at, units_of
from torchrepro.execute.judge_repro import Prepared, truth_of
from torchrepro.judge.compare import same
from torchrepro.judge.randomness import RecordRandom
from torchrepro.judge.reference import without_compilers
from torchrepro.judge.rule import Rule
from torchrepro.locate.conditioning import nudged
from torchrepro.nouns.repro import Repro

_DRAWS = 3


class Rejudging:
    """The ops of a graph, with the values that its compiled form has computed."""

    def __init__(self, repro: Repro, values: Mapping[str, torch.Tensor], rule: Rule) -> None:
        plain = observed_values(repro, limit=0)  # numbers and sizes alone
        kept = {name: Kept(value.detach()) for name, value in values.items()}
        self._recording = replace(plain, values={**plain.values, **kept}, at_use={})
        self._repro = replace(repro, earlier=(), symbols=(), backward=False)
        self._rule = rule
        self._units = {name: unit for unit in _units(repro, plain) for name in unit.nodes}
        self._states = ambient_at(repro.graph.graph, repro.ambient)

    def guilty(self, name: str) -> bool | None:
        """Whether the op makes something else of its operands than eager and float64 do; None: not known."""
        unit = self._units.get(name)
        if unit is None or unit.name in self._recording.late:
            return None
        cut = piece(self._repro, self._recording, unit.nodes)
        if cut is None:
            return None
        outputs: Any = cut.graph.graph.output_node().args[0]
        try:
            got = tuple(self._recording.result(node.name) for node in outputs)
        except NotRecorded:
            return None
        return self._differs(replace(cut, ambient=self._states[unit.name]), got)

    def _differs(self, alone: Repro, got: tuple[torch.Tensor, ...]) -> bool | None:
        prepared = Prepared(alone)
        random = RecordRandom()
        with torch.no_grad():
            eager = _results(prepared, alone.inputs, random)
            if random.is_random:
                return None  # alone it draws other numbers
            truth = tuple(truth_of(prepared, random.draws)[0].outputs)
            if same(eager, got, truth, rule=self._rule):
                return False
            # In a fused kernel an operand is not rounded as it is where it is returned. What a rounding of
            # the operands makes of the result is not the op's fault either.
            for seed in range(_DRAWS):
                other = _results(prepared, nudged(alone.inputs, seed), RecordRandom())
                if same(other, got, truth, rule=self._rule):
                    return False
            return True


def _units(repro: Repro, recording: Recording) -> list[Unit]:
    return [unit for unit in units_of(repro.graph.graph, recording.several) if not unit.is_state]


def _results(prepared: Prepared, inputs: tuple[Any, ...], random: RecordRandom) -> tuple[Any, ...]:
    prepared = Prepared(replace(prepared.repro, inputs=inputs))
    graph = prepared.graph()
    with without_compilers(), random:
        return tuple(prepared.observe(graph, graph, prepared.inputs()).outputs)
