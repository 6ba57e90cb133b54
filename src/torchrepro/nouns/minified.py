"""Minified: what came of a search, as plain data: the object that `--json` prints and `result.json` keeps.

What a search has cost and brought, by pass and step by step. Plain data, which is shown without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torchrepro.nouns.verdict import as_data


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRow(Statistics):
    """The same for one pass, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class OtherFailure:
    """A failure of another kind that was met on the way, kept as a bundle of its own."""

    bundle: str
    signature: str


@dataclass(frozen=True, slots=True)
class Minified:
    """The smallest repro that was found, where it is, and whether it was seen to fail in a fresh process."""

    original: str
    """The bundle that was minified."""
    directory: str
    """The run directory."""
    bundle: str
    script: str
    start_ops: int
    start_inputs: int
    start_elements: int
    ops: int
    inputs: int
    elements: int
    queries: int
    """Candidates that were run; after an interruption only those since: the others are known."""
    original_runs: int
    """How often the original was run first, to see how it fails."""
    seconds: float
    """Since the search process began, or went on."""
    signature: str
    reproduces: bool
    """Whether the script fails in the same way in a fresh process."""
    stopped: str = ""
    """Why the search ended before nothing could be made smaller; empty if it did not."""
    passes: tuple[PassRow, ...] = ()
    also_seen: tuple[OtherFailure, ...] = ()
    explanation: Mapping[str, Any] | None = None
    explained: tuple[str, ...] = ()
    """The explanation in words, a line each."""
    notes: tuple[str, ...] = ()
    history: tuple[Adoption, ...] = ()
    """How it became smaller, an interrupted run included; empty in results of older versions."""
    scope: Mapping[str, Any] = field(default_factory=dict)
    """The settings that it was found with, as far as another choice may give another result."""

    @property
    def minimal(self) -> bool:
        """Whether the search came to its end and what it left was verified."""
        return self.reproduces and not self.stopped

    @property
    def exit_code(self) -> int:
        return 0 if self.minimal else 1

    def _repr_html_(self) -> str:
        from torchrepro.nouns.sections import html, of_minified

        return html(of_minified(self))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found: dict[str, Any] = as_data(asdict(self))
        return {**found, "minimal": self.minimal, "seconds": round(self.seconds, 3)}
