"""Captured: what one way of capturing made of a model, against Python, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.frontend.harness import WAYS, Counting
from torchrepro.hunt.observation import Facts, facts_of, first_difference
from torchrepro.judge.compare import same

BITWISE = "bitwise"
JUDGED = "by the judge"
"""Not every bit, but as close as the judge wants it (docs/judging.md)."""


@dataclass(frozen=True, slots=True)
class Captured:
    agrees: str
    """`BITWISE`, `JUDGED`, or the first difference from what Python gives."""
    graphs: int = 0
    ops: int = 0
    breaks: tuple[str, ...] = ()
    """Why the first call is not one graph."""
    again: bool = False
    """Whether a later call with other values was captured again."""
    seconds: float = 0.0
    """Of the first call."""

    @property
    def right(self) -> bool:
        return self.agrees in (BITWISE, JUDGED)


def captured(
    way: str, build: Callable[[], nn.Module], calls: Sequence[Callable[[], dict[str, Any]]]
) -> Captured:
    """Call a model that is built anew, once by Python and once captured, with the arguments that are made."""
    plain = build()
    expected = [_outcome(plain, make()) for make in calls]
    counting = Counting()
    call = WAYS[way](build(), counting, False)
    started = time.perf_counter()
    found = [_outcome(call, calls[0]())]
    seconds = time.perf_counter() - started
    graphs, ops, breaks = len(counting.graphs), counting.ops, tuple(counting.breaks())
    found += [_outcome(call, make()) for make in calls[1:]]
    return Captured(_agreement(expected, found), graphs, ops, breaks, len(counting.graphs) > graphs, seconds)


def _outcome(call: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(0)
    try:
        return {"result": call(**arguments), "argument": arguments}
    except Exception as error:
        return {"error": error}


def _agreement(expected: Sequence[dict[str, Any]], found: Sequence[dict[str, Any]]) -> str:
    agreed = BITWISE
    for right, got in zip(expected, found, strict=True):
        one, other = facts_of(right), facts_of(got)
        difference = first_difference(one, other)
        if difference is None:
            continue
        alike = first_difference(_without_values(one), _without_values(other)) is None
        if not alike or not same(_tensors(right), _tensors(got)):
            return difference
        agreed = JUDGED
    return agreed


def _without_values(facts: Facts) -> Facts:
    return {path: fact for path, fact in facts.items() if not path.endswith(".values")}


def _tensors(outcome: dict[str, Any]) -> list[torch.Tensor]:
    result = outcome["result"]
    values = result.values() if isinstance(result, Mapping) else [result]
    return [value for value in values if isinstance(value, torch.Tensor)]
