"""Seconds: a guarded call, and the capture of BERT-base, as ratios to Dynamo's in the same process.

Both run the captured graph as it is, without a compiler, so that what differs is guards and the code around.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from tests.frontend.harness import WAYS, Counting

ROUNDS = 30
TURN = 0.02
"""Seconds of one turn of one way, at least one call."""
CAPTURES = 3
HEADINGS = ("what", "eager", "front end", "Dynamo", "ratio to Dynamo")


@dataclass(frozen=True, slots=True)
class Cost:
    what: str
    eager: float
    ours: float
    dynamo: float
    """Seconds: the median of all rounds."""
    ratio: float
    """The median of the rounds' own ratios."""


def three_operations(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y) * 2


class ManyParameters(nn.Module):
    """100 layers with 200 parameters, each of four numbers at most."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(100))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def fifty_breaks(x: torch.Tensor) -> torch.Tensor:
    for _ in range(50):
        x = x + 1 if x.sum() > 0 else x - 1
    return x


def calls() -> list[Cost]:
    """Of a call that finds its graph."""
    torch.set_num_threads(1)
    function = (three_operations, (torch.ones(4), torch.ones(4)))
    module = (ManyParameters().requires_grad_(False), (torch.ones(1, 2),))
    return [
        _call("a call of 3 operations", *function),
        _call("a call of a module with 200 parameters", *module),
        _call("a loop with 50 breaks", fifty_breaks, (torch.ones(4),)),
    ]


def bert_base() -> Cost:
    """Of the first call: twelve layers of the real size with random weights, a batch of one, 16 tokens."""
    torch.set_num_threads(1)
    model = transformers.BertModel(transformers.BertConfig()).eval()
    tokens = torch.arange(16)[None]
    seconds: dict[str, list[float]] = {"eager": [], "traced": [], "dynamo": []}
    with torch.no_grad():
        for round_ in range(CAPTURES + 1):
            for way, found in seconds.items():
                call = WAYS[way](model, Counting(), False)
                started = time.perf_counter()
                call(input_ids=tokens)
                # The first round is for importing and filling caches.
                if round_:
                    found.append(time.perf_counter() - started)
    return _cost("capture of BERT-base", seconds)


def _call(what: str, function: Any, args: tuple[torch.Tensor, ...]) -> Cost:
    ways = {way: WAYS[way](function, Counting(), False) for way in ("dynamo", "traced", "eager")}
    for call in ways.values():
        call(*args)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, call in ways.items():
            seconds[way].append(_turn(call, args))
    return _cost(what, seconds)


def _turn(call: Callable[..., Any], args: tuple[torch.Tensor, ...]) -> float:
    count, started = 0, time.perf_counter()
    while True:
        call(*args)
        count += 1
        passed = time.perf_counter() - started
        if passed >= TURN:
            return passed / count


def _cost(what: str, seconds: dict[str, list[float]]) -> Cost:
    ratios = [ours / theirs for ours, theirs in zip(seconds["traced"], seconds["dynamo"], strict=True)]
    middle = {way: statistics.median(found) for way, found in seconds.items()}
    return Cost(what, middle["eager"], middle["traced"], middle["dynamo"], statistics.median(ratios))


def cells(costs: Sequence[Cost]) -> list[list[str]]:
    return [
        [cost.what, _time(cost.eager), _time(cost.ours), _time(cost.dynamo), f"{cost.ratio:.2f}"]
        for cost in costs
    ]


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e6:.0f} µs"
