"""What runs in a candidate's own process: each takes a repro and plain data, and returns plain data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.judge.models import Phase
from torchrepro.nouns.repro import Repro


def judge(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """The verdict on a candidate."""
    from torchrepro.cut.hints import described, last_words, node_of
    from torchrepro.execute.judge_repro import judge_repro

    raised: list[BaseException] = []
    with last_words(payload["time_limit"]):
        verdict = judge_repro(repro, fp64=payload.get("fp64", True), phase=phase, raised=raised)
    node = node_of(raised[-1]) if raised else None
    return msgspec.to_builtins(verdict.with_notes(f"working on {described(node)}") if node else verdict)


def judge_before_code(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """The verdict on a candidate of a failure that comes before any code is generated (`early_end.py`)."""
    from torchrepro.engine.stop_early import PastTheFailure, ending_before_code, is_compiled_once
    from torchrepro.nouns.verdict import Kind, Verdict

    if not is_compiled_once(repro):
        return judge(repro, payload, phase)
    try:
        with ending_before_code():
            return judge(repro, payload, phase)
    except PastTheFailure:
        # No pass: nobody has run it.
        summary = "not run: the compiler got further than the original did"
        return msgspec.to_builtins(Verdict(Kind.NOT_COMPARABLE, summary=summary))


def judge_rounds(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Judge one compilation on each set of inputs (`cut/batched_inputs.py`)."""
    from torchrepro.cut.batched_inputs import verdicts_of_rounds

    verdicts = verdicts_of_rounds(repro, own=payload["own"], seconds=payload["seconds"], phase=phase)
    return [msgspec.to_builtins(verdict) for verdict in verdicts]


def record(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Run eagerly and write every intermediate value to the file at `path`."""
    from torchrepro.cut.record_values import observed_values, write_values

    phase("eager")
    write_values(observed_values(repro, limit=payload["limit"]), Path(payload["path"]))
    return True
