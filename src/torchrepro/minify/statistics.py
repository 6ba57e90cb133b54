"""Statistics: what a pass has cost and brought. Plain data, which the command shows without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a pass has cost and brought."""

    queries: int = 0
    """Candidates that were given to the oracle."""
    known: int = 0
    """Candidates whose verdict was known already."""
    rejected: int = 0
    """Candidates that could not run at all, found without the oracle."""
    adopted: int = 0
    seconds: float = 0.0
