"""Functions to explain: lines in this file are quoted by the tests, by their text."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch


def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
    return x * factor


def straight(x: torch.Tensor) -> torch.Tensor:
    return scaled(scaled(x)).relu()


def deciding(x: torch.Tensor) -> torch.Tensor:
    y = scaled(x)
    if y.sum() > 0:
        y = y + 1
    return y.relu()


def speaking(x: torch.Tensor) -> torch.Tensor:
    y = scaled(x)
    print("spoken")
    return y + 1


def calls_speaking(x: torch.Tensor) -> torch.Tensor:
    x = x * 3
    y = speaking(x)
    return y - 1


def calls_speaking_twice(x: torch.Tensor) -> torch.Tensor:
    return speaking(speaking(x) * 3)


def raising(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    raise ValueError("too large")
    return y


def handling(x: torch.Tensor) -> torch.Tensor:
    try:
        raise KeyError("a")
    except KeyError:
        print("handled")
    return x + 1


def changing(found: dict[str, torch.Tensor], x: torch.Tensor) -> dict[str, torch.Tensor]:
    found["one"] = x + 1
    x.add_(1)
    return found


def numbers(x: torch.Tensor) -> torch.Tensor:
    total = 0.0
    for i in range(12):
        total += (x * i).sin().cos().sin().cos().sin().cos().sum().item()
        x = x + total
    return x


def untouched(x: torch.Tensor) -> int:
    return 3


def yielding(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x + 1


def with_wide_text(x: torch.Tensor) -> torch.Tensor:
    return (
        x
        + (("größer", x.sum())[1] > 0).item()
        + x.mean()
        + x.amax()
        + x.amin()
        + x.sum()
        + x.prod()
        + x.std()
    )


class Gate(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, *, twice: bool = False) -> torch.Tensor:
        h = self.linear(x)
        if h.mean() > 0:
            h = h * 2
        return self.linear(h) if twice else h


def restless(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """Differ in each call of Python's: no capture can agree with that."""
    return x + 1, time.perf_counter_ns()
