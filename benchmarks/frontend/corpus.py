"""The corpus of small functions (`tests/frontend/corpus`) under the front end and under Dynamo, by theme."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.telling import tell
from tests.frontend.corpus.registry import Case, all_cases
from tests.frontend.harness import WAYS, Observed, observe
from torchrepro.hunt.observation import first_difference

HEADINGS = ("theme", "cases", "right", "one graph", "graphs", "ops", "breaks")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way of capturing one case."""

    right: bool
    graphs: int
    ops: int
    breaks: int
    difference: str = ""

    @property
    def whole(self) -> bool:
        return self.right and self.breaks == 0 and self.graphs <= 1


@dataclass(frozen=True, slots=True)
class Row:
    theme: str
    case: str
    ours: Outcome
    dynamo: Outcome


def measure(themes: Sequence[str] = ()) -> list[Row]:
    """All cases, or those of some themes. Each is called three times; the first is what is counted."""
    cases = [case for case in all_cases() if not themes or case.theme in themes]
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, case in enumerate(cases, start=1):
            expected = observe(case, WAYS["eager"])
            found.append(
                Row(
                    case.theme,
                    case.name,
                    _outcome(case, "traced", expected),
                    _outcome(case, "dynamo", expected),
                )
            )
            if number % 50 == 0:
                tell(f"[{number}/{len(cases)}] {case}")
    return found


def _outcome(case: Case, way: str, expected: Sequence[Observed]) -> Outcome:
    found = observe(case, WAYS[way])
    differences = [
        first_difference(right.facts, got.facts) for right, got in zip(expected, found, strict=True)
    ]
    difference = next((text for text in differences if text is not None), "")
    return Outcome(not difference, found[0].graphs, found[0].ops, found[0].breaks, difference)


def cells(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each theme, and one for all."""
    themes = list(dict.fromkeys(row.theme for row in rows))
    lines = [_line(theme, [row for row in rows if row.theme == theme]) for theme in themes]
    return [*lines, _line("**all**", rows)]


def _line(theme: str, rows: Sequence[Row]) -> list[str]:
    def both(counts: Iterable[tuple[int, int]]) -> str:
        ours, dynamo = map(sum, zip(*counts, strict=True))
        return f"{ours} / {dynamo}"

    return [
        theme,
        str(len(rows)),
        both((row.ours.right, row.dynamo.right) for row in rows),
        both((row.ours.whole, row.dynamo.whole) for row in rows),
        both((row.ours.graphs, row.dynamo.graphs) for row in rows),
        both((row.ours.ops, row.dynamo.ops) for row in rows),
        both((row.ours.breaks, row.dynamo.breaks) for row in rows),
    ]


def summary(rows: Sequence[Row]) -> str:
    wrong = [f"{row.theme}.{row.case}" for row in rows if not row.ours.right]
    told = f"Wrong in ours: {', '.join(wrong)}." if wrong else "None is wrong in ours."
    return f"In each cell the front end / Dynamo. {told}"
