"""What a search has cost and brought, by pass and step by step. Plain data, which is shown without torch."""

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


@dataclass(frozen=True, slots=True)
class Adoption:
    """A best that took the place of a former one, and when."""

    query: int
    """Candidates that had been run by then, those before an interruption included."""
    seconds: float
    """Of searching, likewise."""
    ops: int
    inputs: int
    elements: int
    pass_name: str = ""
