"""Explanation: which parts of a repro matter, with the evidence, and the nearest repro that passes."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import as_data

_LINES = 4
_WIDTH = 100


class Area(StrEnum):
    """Which part of a repro is varied; in the order in which a maintainer asks for them."""

    VALUES = "values"
    SIZES = "sizes"
    DTYPES = "dtypes"
    BACKENDS = "backends"
    GRADIENTS = "gradients"
    ARGUMENTS = "arguments"
    LAYOUTS = "layouts"
    COMPILER = "compiler"
    AMBIENT = "ambient"
    OPS = "ops"


@dataclass(frozen=True, slots=True)
class Fact:
    """What variations of one part of a repro have shown. The sentence says nothing that was not tried."""

    area: Area
    subject: str
    """What was varied: `x`, `x.dim 1`, `dtype`."""
    sentence: str
    matters: bool
    """Whether the failure went away for some of what was tried, or it tells where the failure comes from."""
    failing: tuple[str, ...] = ()
    """Evidence: what fails in the same way. What the repro itself has is among it."""
    passing: tuple[str, ...] = ()
    otherwise: tuple[str, ...] = ()
    """What fails in another way, which says nothing about this failure."""
    short: str = ""
    """Names what does not matter, for a line that lists several."""

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = as_data(asdict(self))
        otherwise, _ = found.pop("otherwise"), found.pop("short")
        return {**found, "area": self.area.value, "fails_otherwise": otherwise}


@dataclass(frozen=True, eq=False)
class Neighbour:
    """The repro with the smallest edit that makes it pass, and the edit."""

    description: str
    repro: Repro
    diff: str
    """Unified, from the script that fails to the one that passes."""

    def to_dict(self) -> dict[str, Any]:
        return {"description": self.description, "diff": self.diff}


@dataclass(frozen=True, eq=False)
class Explanation:
    """What was found out about a repro by varying it."""

    facts: tuple[Fact, ...] = ()
    neighbour: Neighbour | None = None
    notes: tuple[str, ...] = ()
    """What could not be found out, and why."""
    queries: int = 0
    """Questions to the judge. One compilation may answer for many variations, and is one question."""
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "facts": [fact.to_dict() for fact in self.facts],
            "neighbour": None if self.neighbour is None else self.neighbour.to_dict(),
            "notes": list(self.notes),
            "queries": self.queries,
            "seconds": round(self.seconds, 3),
        }

    def _repr_html_(self) -> str:
        from torchrepro.nouns.sections import html, of_explanation

        return html(of_explanation(self))

    def lines(self) -> tuple[str, ...]:
        """For the header of a script: at most four lines, what separates failing from passing first."""
        ordered = sorted(self.facts, key=lambda fact: list(Area).index(fact.area))
        matters = [fact for fact in ordered if fact.matters]
        alike = [fact for fact in ordered if not fact.matters]
        if len(matters) + len(alike) <= _LINES:
            chosen = [fact.sentence for fact in (*matters, *alike)]
        else:
            room = _LINES - 1 if alike else _LINES
            chosen = [fact.sentence for fact in matters[:room]]
            if len(chosen) + len(alike) <= _LINES:
                chosen += [fact.sentence for fact in alike]
            elif alike:
                chosen.append(_fitting("does not matter: ", [fact.short or fact.subject for fact in alike]))
        return tuple(textwrap.shorten(line, _WIDTH, placeholder=" ...") for line in chosen)


def _fitting(start: str, names: list[str]) -> str:
    """As many whole names as fit into a line."""
    kept = [name for count, name in enumerate(names) if len(start + ", ".join(names[: count + 1])) < _WIDTH]
    return f"{start}{', '.join(kept)}"
