"""Captured: what one way of capturing made of a call, against Python, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.frontend.corpus.counting import Counting
from tests.frontend.corpus.facts import Facts, facts_of, first_difference
from tests.frontend.corpus.ways import WAYS
from torchrepro.judge import same

BITWISE = "bitwise"
JUDGED = "by the judge"
"""Not every bit, but as close as the judge wants it (docs/judging.md)."""


@dataclass(frozen=True, slots=True)
class Captured:
    way: str
    agrees: str
    """`BITWISE`, `JUDGED`, or the first difference from what Python gives."""
    graphs: int = 0
    ops: int = 0
    breaks: tuple[str, ...] = ()
    """Why the first call is not one graph."""
    captured_again: bool = False
    """Whether a second call with other values was captured again."""
    seconds: float = 0.0
    """Of the first call."""

    @property
    def right(self) -> bool:
        return self.agrees in (BITWISE, JUDGED)


def capture(
    way: str, build: Callable[[], nn.Module], calls: Mapping[int, Callable[[], dict[str, Any]]]
) -> Captured:
    """Call a model that is built anew, once by Python and once captured, with the arguments of each seed."""
    expected = [_outcome(build(), make()) for make in calls.values()]
    model, counting = build(), Counting()
    call = WAYS[way](model, counting, False)
    found, graphs, seconds = [], [], []
    for make in calls.values():
        arguments = make()
        started = time.perf_counter()
        found.append(_outcome(call, arguments))
        seconds.append(time.perf_counter() - started)
        graphs.append(len(counting.graphs))
    return Captured(
        way,
        _agreement(expected, found),
        graphs[0],
        counting.ops_of_first(graphs[0]),
        captured_again=graphs[-1] > graphs[0],
        seconds=seconds[0],
    )


def _outcome(call: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    try:
        return {"result": call(**arguments), "argument": arguments}
    except Exception as error:
        return {"error": error}


def _agreement(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    agreed = BITWISE
    for right, got in zip(expected, found, strict=True):
        one, other = facts_of(right), facts_of(got)
        difference = first_difference(one, other)
        if difference is not None:
            if first_difference(_without_values(one), _without_values(other)) is not None:
                return difference
            if not same(_tensors(right), _tensors(got)):
                return difference
            agreed = JUDGED
    return agreed


def _without_values(facts: Facts) -> Facts:
    return {path: fact for path, fact in facts.items() if not path.endswith(".values")}


def _tensors(outcome: dict[str, Any]) -> list[torch.Tensor]:
    result = outcome["result"]
    values = result.values() if isinstance(result, Mapping) else [result]
    return [value for value in values if isinstance(value, torch.Tensor)]
