"""SearchRequest: what a search process is told, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """Which search, on what, and where its result goes."""

    job: str
    """`package.module:function` that takes this and a `Reporter`, and returns plain data."""
    bundle: str
    directory: str
    """The directory of the run (`session/run_directory.py`)."""
    settings: Mapping[str, Any]
    """As plain data: only the job knows what they are."""
    seed: str
    """Where a warm cache is kept from which the next run starts (`session/compiler_cache.py`)."""
    parent: int
    """The process that asked; the search does not outlive it."""
    warm: bool = True
    """Warm up before the first candidate; False after a search process that died of it."""
    lock: int = -1
    """The descriptor that holds the lock of the run directory; candidates must not inherit it."""
