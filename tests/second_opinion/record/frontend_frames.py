"""Functions whose frames are recorded, in a file of their own: a bundle takes them along as source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

SCALE = 3.0
TABLE = {"shift": [torch.tensor([1.0, 2.0]), 4]}


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE + TABLE["shift"][0]  # type: ignore[index,no-any-return]


def make(bias: torch.Tensor) -> Callable[..., Any]:
    count = 2

    def step(x: torch.Tensor, items: list[Any], *more: int, power: int = 2, **named: float) -> torch.Tensor:
        y = helper(x) + bias * count
        for item in items:
            y = y + item
        return y**power + sum(more) + named.get("extra", 0.0)

    return step


class Cell(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def log(x: torch.Tensor, sink: Any) -> torch.Tensor:
    return x + 1


def speaking(x: torch.Tensor) -> torch.Tensor:
    print("not part of a graph")
    return x + 1


def refusing(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """A backend that cannot compile anything."""
    raise ValueError(f"no kernel for {len(graph.graph.nodes)} nodes")
