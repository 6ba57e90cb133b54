"""What a row of the truth table is, and the few words rows are written in."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from torchrepro.nouns.verdict import Blame, Difference

NAN, INF = math.nan, math.inf
T = torch.tensor


@dataclass(frozen=True)
class Pair:
    """Eager's result, the compiled one's and the truth (made on demand), and the verdict they deserve."""

    name: str
    make: Callable[[], tuple[Any, Any, Any]]
    same: bool
    difference: Difference | None = None
    blamed: Blame | None = None
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def good(name: str, make: Callable[[], Any], blamed: Blame | None = None, **options: Any) -> Pair:
    return Pair(name, lambda: _three(make()), True, None, blamed, options)


def bad(
    name: str, make: Callable[[], Any], difference: Difference = Difference.VALUE, **options: Any
) -> Pair:
    return Pair(name, lambda: _three(make()), False, difference, None, options)


def _three(made: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    ref, res, *truth = made
    return ref, res, truth[0] if truth else None


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def changed(tensor: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[index] = value
    return tensor
