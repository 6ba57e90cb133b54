"""What both ways made of one model, kept as a line of JSON the moment it is known."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.frontend.captured import Captured
from benchmarks.frontend.models import Model
from benchmarks.processes import json_of, last_line_of, run_limited

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Measured:
    model: str
    kind: str
    ours: Captured
    dynamo: Captured
    torch: str = torch.__version__
    transformers: str = transformers.__version__


def measure(model: Model, limit: float) -> Measured:
    """In a process with one thread, so that what else the machine does matters less."""
    words = [sys.executable, "-m", "benchmarks.frontend.one_model", model.name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ended = run_limited(words, environment, ROOT, limit)
    answer = json_of(ended)
    if not answer:
        nothing = Captured(agrees=f"the process ended with {ended.exit_code}: {last_line_of(ended)}")
        return Measured(model.name, model.kind, nothing, nothing)
    return Measured(model.name, model.kind, _captured(answer["traced"]), _captured(answer["dynamo"]))


def _captured(told: dict[str, Any]) -> Captured:
    return Captured(**{**told, "breaks": tuple(told["breaks"])})


def append(path: Path, one: Measured) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(one)) + "\n")


def read(path: Path) -> list[Measured]:
    """What a file holds. A last line that was cut off by a kill is left out: that model is run again."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    told = [json.loads(line) for line in lines if line.endswith("\n")]
    return [
        Measured(**{**one, "ours": _captured(one["ours"]), "dynamo": _captured(one["dynamo"])})
        for one in told
    ]


def latest(found: Iterable[Measured]) -> dict[str, Measured]:
    """By model; what was measured last counts."""
    return {one.model: one for one in found}
