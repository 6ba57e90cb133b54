"""Ambient: the state around a computation that changes what it computes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ambient:
    """Being written: autocast, grad mode, RNG, ..."""
