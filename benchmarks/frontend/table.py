"""The table of models: a row for each, the front end against Dynamo."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.frontend.captured import Captured
from benchmarks.frontend.measured import Measured

NOTHING = "–"
HEADINGS = ("model", "kind", "equals eager", "graphs", "ops", "breaks", "captured again", "capture")


def cells(one: Measured) -> list[str]:
    ours, dynamo = one.ours, one.dynamo
    return [
        one.model,
        one.kind,
        _agreement(ours),
        f"{ours.graphs} / {dynamo.graphs}",
        f"{ours.ops} / {dynamo.ops}",
        f"{len(ours.breaks)} / {len(dynamo.breaks)}",
        "**yes**" if ours.again else "no",
        f"{ours.seconds:.1f} s ({_ratio(one)})",
    ]


def _agreement(captured: Captured) -> str:
    return captured.agrees if captured.right else f"**no**: {captured.agrees[:80]}"


def _ratio(one: Measured) -> str:
    return f"{one.ours.seconds / one.dynamo.seconds:.2f}" if one.dynamo.seconds else NOTHING


def summary(found: Sequence[Measured]) -> str:
    right = [one for one in found if one.ours.right]
    bitwise = sum(one.ours.agrees == "bitwise" for one in found)
    as_few = sum(one.ours.graphs <= one.dynamo.graphs for one in right)
    ratios = [one.ours.seconds / one.dynamo.seconds for one in right if one.dynamo.seconds]
    parts = [
        f"equal to eager {len(right)} of {len(found)} ({bitwise} bitwise; Dynamo "
        f"{sum(one.dynamo.right for one in found)})",
        f"no more graphs than Dynamo {as_few} of {len(right)}",
        f"the same number of operations {sum(one.ours.ops == one.dynamo.ops for one in right)}",
    ]
    if ratios:
        parts.append(f"capture takes {statistics.median(ratios):.2f} of Dynamo's time (median)")
    return f"{'; '.join(parts)}."


def reasons(found: Sequence[Measured]) -> list[str]:
    """Every place where ours breaks, with its model."""
    return [f"{one.model}: {reason}" for one in found for reason in dict.fromkeys(one.ours.breaks)]


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], told: str) -> str:
    lines = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join([*lines, "", told])
