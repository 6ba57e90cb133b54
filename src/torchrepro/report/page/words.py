"""Words: how kinds, stages and numbers are said to a reader.

Where the error grows most: the plot of error growth as a short table, for who cannot see the plot.

Rows of the tables of the environment and of the settings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from torchrepro.nouns.environment import Environment
from torchrepro.nouns.located import Confidence, Growth
from torchrepro.nouns.plain import as_data
from torchrepro.nouns.verdict import Kind, Stage

KINDS = {
    Kind.PASS: "passes",
    Kind.COMPILE_ERROR: "compile error",
    Kind.RUN_ERROR: "error at run time",
    Kind.MISMATCH: "wrong result",
    Kind.NON_FINITE: "NaN or infinity",
    Kind.CRASH: "crash",
    Kind.HANG: "hang",
    Kind.OUT_OF_MEMORY: "out of memory",
    Kind.INVALID: "cannot be tested",
    Kind.FLAKY: "flaky",
    Kind.MISSING_ERROR: "missing error",
    Kind.NOT_COMPARABLE: "not comparable",
}
STAGES = {
    Stage.CAPTURE: "capture: Python to a graph (Dynamo, export)",
    Stage.AOT: "AOT: the graph made functional, with its backward",
    Stage.DECOMPOSITION: "decomposition and partition: ops taken apart, forward and backward divided",
    Stage.BACKEND: "backend: the graph to kernels",
    Stage.NONE: "not known",
}
CONFIDENCES = {
    Confidence.VERIFIED: "turned off, or run alone, it was seen to be the cause",
    Confidence.LIKELY: "all that was seen points there; nothing could be turned off to prove it",
    Confidence.UNKNOWN: "not enough was seen to say so",
}


def error(value: float | None) -> str:
    """`3.2e-05`; a dash where nothing is known."""
    if value is None:
        return "–"
    return "0" if value == 0 else f"{value:.2g}"


def begun(text: str) -> str:
    """With a capital letter, and the rest as it is."""
    return text[:1].upper() + text[1:]


def count(value: int) -> str:
    return f"{value:,}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def times_worse(eager: float | None, compiled: float | None) -> str:
    """`4,000 times`; empty where no such number can be given."""
    if not eager or not compiled or not math.isfinite(compiled / eager) or compiled <= eager:
        return ""
    return f"{float(f'{compiled / eager:.2g}'):,.0f} times"


def shortened(text: str, limit: int = 200_000) -> str:
    """The output of a C++ compiler can have megabytes: its beginning, and how much is left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n… {len(text) - limit:,} more characters"


_ROWS = 8


def worst_growth(growth: Sequence[Growth]) -> list[Growth]:
    """The nodes at which the compiled side is worst against eager, in the order of the graph."""
    known = [point for point in growth if point.eager is not None and point.compiled is not None]
    worst = sorted(known, key=_excess, reverse=True)[:_ROWS]
    chosen = {id(point) for point in worst}
    return [point for point in known if id(point) in chosen]


def _excess(point: Growth) -> float:
    """How many orders of magnitude compiled is further from the truth; errors below 1e-20 are none."""
    eager, compiled = point.eager or 0.0, point.compiled or 0.0
    if math.isnan(compiled):
        return math.inf
    if math.isnan(eager) or math.isinf(eager):
        return -math.inf
    return math.log10(max(compiled, 1e-20)) - math.log10(max(eager, 1e-20))


_NAMES = {
    "cpu": "CPU",
    "cpu_capability": "CPU capability",
    "gpus": "GPUs",
    "cuda": "CUDA",
    "cxx": "C++ compiler",
}


def environment_rows(environment: Environment | None) -> list[tuple[str, str]]:
    """Name and value of all that is known."""
    if environment is None:
        return []
    rows = []
    for field in fields(environment):
        value = getattr(environment, field.name)
        shown = ", ".join(value) if isinstance(value, tuple) else str(value or "")
        if shown:
            rows.append((_NAMES.get(field.name, field.name), shown))
    return rows


def setting_rows(settings: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """A row for each setting; nested ones have dotted names."""
    rows: list[tuple[str, str]] = []
    for name, value in (settings or {}).items():
        if isinstance(value, Mapping) and value:
            rows.extend((f"{name}.{inner}", shown) for inner, shown in setting_rows(value))
        else:
            rows.append(
                (str(name), value if isinstance(value, str) else json.dumps(as_data(value), default=str))
            )
    return rows
