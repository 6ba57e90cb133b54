"""The table: found against known, a row for each case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.locate.known import NOBODY, known_stage
from benchmarks.locate.measured import Measured
from benchmarks.minify.cases import Case

NOTHING = "–"
HEADINGS = (
    "case",
    "kind",
    "known",
    "found",
    "part",
    "op (found by)",
    "workaround",
    "gone with it",
    "confidence",
    "kernel",
    "compiles",
    "seconds",
    "right",
)


@dataclass(frozen=True, slots=True)
class Row:
    case: Case
    known: str
    found: Measured

    @property
    def fails_here(self) -> bool:
        """A program that is known to fail and does not is no mistake of anybody: it is another machine."""
        return self.known == NOBODY or self.found.stage != NOBODY

    @property
    def right(self) -> bool:
        return self.known == self.found.stage


def rows(cases: Sequence[Case], found: Mapping[str, Measured]) -> list[Row]:
    """The cases of which something is known, in the order of the table."""
    return [Row(case, known_stage(case), found[case.name]) for case in cases if case.name in found]


def cells(row: Row) -> list[str]:
    found = row.found
    verdict = "yes" if row.right else "**no**"
    return [
        row.case.name,
        row.case.kind,
        row.known,
        found.stage or NOTHING,
        found.part or NOTHING,
        f"{found.op} ({found.way})" if found.op else NOTHING,
        f"`{found.workaround}`" if found.workaround else NOTHING,
        ("yes" if found.verified else "no") if found.workaround else NOTHING,
        found.confidence or NOTHING,
        found.kernel or NOTHING,
        NOTHING if found.compiles is None else str(found.compiles),
        NOTHING if found.seconds is None else f"{found.seconds:.0f}",
        verdict if row.fails_here else "does not fail here",
    ]


def summary(found: Sequence[Row]) -> str:
    """How many are right, and what could not be asked."""
    asked = [row for row in found if row.fails_here]
    failing = [row for row in asked if row.known != NOBODY]
    parts = [f"stage {sum(row.right for row in asked)} of {len(asked)}"]
    parts.append(f"a verified workaround {sum(row.found.verified for row in failing)} of {len(failing)}")
    parts.append(f"an op {sum(bool(row.found.op) for row in failing)} of {len(failing)}")
    healthy = [row.case.name for row in found if not row.fails_here]
    if healthy:
        parts.append(f"does not fail on this machine: {', '.join(healthy)}")
    return f"Right: {'; '.join(parts)}."


def markdown(found: Sequence[Row]) -> str:
    """The table and the summary, ready for docs/benchmarks.md."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS)]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in cells(row))} |" for row in found]
    legend = (
        "Known is the first backend of the ladder that fails, found by hand. Compiles are all that reached a "
        "backend: warming up, three runs of the original, the ladder and everything after it. Seconds are "
        "those of looking, without catching."
    )
    return "\n".join([*lines, "", legend, "", summary(found)])
