"""Jobs of a hunt for programs that are Python: judged between captures, reduced, saved as a whole call.

They take and return what those in `hunt/jobs.py` do, and may be told not to `reduce`. A program is judged
alone in any case; what fails is judged again, because reducing it takes a process and a time limit of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from torchrepro.bundle.read import MANIFEST
from torchrepro.hunt.directory import REDUCING, SUSPECT, Judged
from torchrepro.hunt.generators.python_programs import PythonProgram, generate
from torchrepro.hunt.judge_programs import ProgramVerdict, judge_program, save_program
from torchrepro.hunt.reduce_source import reduce_failure
from torchrepro.judge.models import Phase
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Verdict

_SECONDS_TO_REDUCE = 200.0


def program_of(seed: str) -> PythonProgram:
    """Return the program of a seed."""
    return generate(Random(seed))


def judge(_: Repro, payload: Mapping[str, Any], phase: Phase) -> list[dict[str, Any]]:
    """Judge programs one after the other; if `alone`, reduce and save one that fails."""
    found = [_judged(seed, payload, phase) for seed in payload["seeds"]]
    return [msgspec.to_builtins(judged) for judged in found]


def _judged(seed: str, payload: Mapping[str, Any], phase: Phase) -> Judged:
    found = judge_program(program_of(seed), phase=phase)
    if not found.verdict.fails:
        return Judged(seed, found.verdict.kind.value, found.verdict.summary)
    if not payload["alone"]:
        return Judged(seed, SUSPECT, signature=found.bucket)
    if not payload.get("reduce", True):
        phase("save")
        return _saved(seed, found, Path(payload["bundle"]))
    phase(REDUCING)  # what a candidate does to this process says nothing about the program
    return _saved(seed, reduce_failure(found, seconds=_SECONDS_TO_REDUCE), Path(payload["bundle"]))


def save(_: Repro, payload: Mapping[str, Any], phase: Phase) -> dict[str, Any]:
    """Save the program of a seed with a verdict that killed the process which judged it."""
    verdict = msgspec.convert(payload["verdict"], Verdict)
    killed = ProgramVerdict(program_of(payload["seed"]), verdict, "dynamo")
    told: dict[str, Any] = msgspec.to_builtins(_saved(payload["seed"], killed, Path(payload["bundle"])))
    return told


def _saved(seed: str, found: ProgramVerdict, directory: Path) -> Judged:
    path = save_program(found, directory)
    verdict = found.verdict
    kind = verdict.kind if verdict.fails else Kind.FLAKY
    judged = Judged(seed, kind.value, verdict.summary, found.bucket)
    if (path / MANIFEST).is_file():
        return replace(judged, bundle=str(path))
    if found.way == "aot_eager" and found.aspect == "values":  # its gradients may be summed in another order
        return Judged(seed, Kind.PASS.value, "the judge grants the difference, which is a rounding")
    return replace(judged, not_saved=f"only a script shows it: {path}")
