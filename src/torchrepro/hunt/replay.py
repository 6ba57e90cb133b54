"""Make one program of a hunt again: its script, and its verdict. Jobs for a fresh process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.read import SCRIPT
from torchrepro.execute.judge_repro import judge_repro
from torchrepro.hunt import python_jobs
from torchrepro.hunt.jobs import program_of, why_no_program
from torchrepro.hunt.judge_programs import judge_program
from torchrepro.hunt.seeds import generator_of
from torchrepro.judge.models import Phase
from torchrepro.nouns.repro import Repro
from torchrepro.script.save_bundle import bundle_members


def script_of(payload: Mapping[str, Any], phase: Phase) -> str:
    """Return the script of a seed's program, empty if there is none."""
    phase("build")
    if not generator_of(payload["seed"]).graphs:
        return python_jobs.program_of(payload["seed"]).source
    repro = _program(payload)
    if repro is None:
        return ""
    script = bundle_members(repro).optional[SCRIPT]
    assert isinstance(script, bytes)
    return script.decode()


def judge(payload: Mapping[str, Any], phase: Phase) -> Any:
    """Return the verdict on a seed's program, which `script_of` has made before."""
    phase("build")
    if not generator_of(payload["seed"]).graphs:
        found = judge_program(python_jobs.program_of(payload["seed"]), phase=phase)
        return msgspec.to_builtins(found.verdict)
    repro = _program(payload)
    assert repro is not None
    return msgspec.to_builtins(judge_repro(repro, fp64=payload.get("fp64", True), phase=phase))


def _program(payload: Mapping[str, Any]) -> Repro | None:
    repro = program_of(payload["seed"], [Path(path) for path in payload["sources"]]).repro
    return None if repro is None or why_no_program(repro) else repro
