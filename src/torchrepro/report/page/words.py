"""Words: how kinds, stages and numbers are said to a reader."""

from __future__ import annotations

import math

from torchrepro.locate.answer import Confidence
from torchrepro.verdict import Kind, Stage

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
