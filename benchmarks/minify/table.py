"""The table: a row for each case with both tools in it, which goals are met, and how many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.minify.cases import Case
from benchmarks.minify.measured import Measured, Side

QUERIES_GOAL = 1 / 4
SECONDS_GOAL = 1 / 5
COMPILES_BEYOND_THE_FIRST = 8

NOTHING = "–"
HEADINGS = (
    "case",
    "kind",
    "caught",
    "start ops",
    "queries",
    "compiles",
    "seconds",
    "final ops (ideal)",
    "elements",
    "script lines",
    "fails in a fresh process",
    "as the original",
    "goals",
)


@dataclass(frozen=True, slots=True)
class Row:
    """One case; a side that has not been run is None."""

    case: Case
    ours: Measured | None
    theirs: Measured | None

    @property
    def queries_ratio(self) -> float | None:
        """By the neutral count of compilations, not by what each tool calls a query."""
        return self._ratio(lambda side: side.compiles)

    @property
    def seconds_ratio(self) -> float | None:
        return self._ratio(lambda side: side.seconds)

    def _ratio(self, of: Callable[[Measured], float | None]) -> float | None:
        """Ours over theirs, where theirs came to an end at all."""
        if self.ours is None or self.theirs is None or not self.theirs.finished:
            return None
        ours, theirs = of(self.ours), of(self.theirs)
        return None if ours is None or not theirs else ours / theirs


def goals(row: Row) -> dict[str, bool]:
    """The goals that apply to a row, and whether each is met."""
    case, ours = row.case, row.ours
    if ours is None:
        return {}
    if not case.fails:
        return {"left alone": not ours.caught}
    if _does_not_fail(row):
        return {}
    found = {"caught": bool(ours.caught), "verified": bool(ours.reproduces and ours.same_failure)}
    if case.ideal is not None:
        found["ideal size"] = ours.ops is not None and ours.ops <= case.ideal
    if case.ideal == 1:
        allowed = 1 + COMPILES_BEYOND_THE_FIRST
        found[f"{COMPILES_BEYOND_THE_FIRST} compiles"] = bool(ours.ops) and (ours.compiles or 0) <= allowed
    if row.queries_ratio is not None:
        found["queries"] = row.queries_ratio <= QUERIES_GOAL
    if row.seconds_ratio is not None:
        found["seconds"] = row.seconds_ratio <= SECONDS_GOAL
    return found


def rows(cases: Sequence[Case], found: Mapping[tuple[str, Side], Measured]) -> list[Row]:
    """The cases of which anything is known, in the order of the table."""
    joined = [Row(case, found.get((case.name, "ours")), found.get((case.name, "theirs"))) for case in cases]
    return [row for row in joined if row.ours or row.theirs]


def cells(row: Row) -> list[str]:
    """In each cell ours, then theirs."""
    case, ours, theirs = row.case, row.ours, row.theirs
    ideal = NOTHING if case.ideal is None else str(case.ideal)
    start = next((side.start_ops for side in (ours, theirs) if side and side.start_ops is not None), None)
    return [
        case.name,
        case.kind,
        f"{_caught(case, ours)} / {_caught(case, theirs)}",
        NOTHING if start is None else str(start),
        _pair(row, lambda side: side.queries),
        _pair(row, _compiles) + _share(row.queries_ratio),
        _pair(row, lambda side: None if side.seconds is None else _seconds(side)) + _share(row.seconds_ratio),
        f"{_pair(row, lambda side: side.ops)} ({ideal})",
        _pair(row, lambda side: side.elements),
        _pair(row, lambda side: side.lines),
        _pair(row, lambda side: _yes(side.reproduces)),
        _pair(row, lambda side: _yes(side.same_failure)),
        _verdict_on(row),
    ]


def summary(found: Sequence[Row]) -> str:
    """How many of the goals are met, goal by goal, and what could not be measured."""
    met: dict[str, list[bool]] = {}
    for row in found:
        for goal, yes in goals(row).items():
            met.setdefault(goal, []).append(yes)
    parts = [f"{goal} {sum(answers)} of {len(answers)}" for goal, answers in met.items()]
    healthy = [row.case.name for row in found if _does_not_fail(row)]
    if healthy:
        parts.append(f"does not fail on this machine: {', '.join(healthy)}")
    return f"Goals met: {'; '.join(parts)}." if met else "; ".join(parts)


def markdown(found: Sequence[Row]) -> str:
    """The table and the summary, ready for docs/benchmarks.md."""
    lines = [f"| {' | '.join(HEADINGS)} |", "|" + "---|" * len(HEADINGS)]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in cells(row))} |" for row in found]
    legend = (
        "In each cell torchrepro / torch's own minifier; in brackets the ratio. Queries are as each tool "
        "counts them; compiles are what reached inductor, warming up, verifying and explaining included. "
        "Seconds are those of minifying; `>` marks a search that the time limit ended, whose sizes are those "
        "of its best so far."
    )
    return "\n".join([*lines, "", legend, "", summary(found)])


def _does_not_fail(row: Row) -> bool:
    """As far as our side can tell: a program with wrong numbers ends well unless somebody compares them."""
    sides = [side for side in (row.ours, row.theirs) if side is not None]
    return row.case.fails and row.ours is not None and not any(side.failed for side in sides)


def _verdict_on(row: Row) -> str:
    if _does_not_fail(row):
        return "does not fail here"
    answers = goals(row)
    missed = [goal for goal, yes in answers.items() if not yes]
    if not answers:
        return NOTHING
    return f"**missed: {', '.join(missed)}**" if missed else "met"


def _caught(case: Case, side: Measured | None) -> str:
    if side is None:
        return NOTHING
    if not side.caught:
        return "nothing"
    if not case.fails:
        return "false alarm"
    return side.caught if side.side == "ours" else f"yes ({side.mode or side.caught})"


def _compiles(side: Measured) -> str | None:
    if side.compiles is None:
        return None
    return f"{side.compiles}, {side.explaining} to explain" if side.explaining else str(side.compiles)


def _seconds(side: Measured) -> str:
    if side.stopped:
        return f">{side.seconds:.0f}"
    return f"{side.seconds:.0f}" if side.finished else f"{side.seconds:.0f}, gave up"


def _yes(answer: bool | None) -> str | None:
    return None if answer is None else "yes" if answer else "**no**"


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f" ({ratio:.2f})"


def _pair(row: Row, of: Callable[[Measured], object]) -> str:
    found = [None if side is None else of(side) for side in (row.ours, row.theirs)]
    return " / ".join(NOTHING if value is None else str(value) for value in found)
