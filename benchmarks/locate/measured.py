"""What `torchrepro locate` answered about one program, kept as a line of JSON the moment it is known."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.locate.known import NOBODY
from benchmarks.minify.cases import Case
from benchmarks.processes import Ended, json_of, last_line_of, run_limited

_ENDING = 60.0
"""Seconds that an interrupted search is given to say what it has found."""
_NOTHING_FOUND = 1


@dataclass(frozen=True, slots=True)
class Measured:
    """None and empty: not known, because it did not come so far."""

    case: str
    stage: str = ""
    """A stage, or that nobody is guilty; empty where no answer came."""
    part: str = ""
    op: str = ""
    way: str = ""
    workaround: str = ""
    verified: bool = False
    """Whether the failure was seen to go away with it."""
    confidence: str = ""
    kernel: str = ""
    compiles: int | None = None
    """As it counts itself: all that reached a backend, warming up included."""
    seconds: float | None = None
    """Of looking; catching the failure is not counted."""
    note: str = ""
    torch: str = torch.__version__


def measure(case: Case, scratch: Path, limit: float) -> Measured:
    """By the command line alone, as a user would: the program, or the function that builds the model."""
    target = str(case.path) if case.injected else f"{case.path}:build"
    words = [
        sys.executable,
        "-m",
        "torchrepro",
        "locate",
        target,
        "--json",
        "--out",
        str(scratch / "located"),
    ]
    ended = run_limited(words, case.environment(scratch), scratch, limit, grace=_ENDING)
    return measured(case.name, json_of(ended), ended)


def measured(case: str, answer: dict[str, Any], ended: Ended) -> Measured:
    """What an answer amounts to. Nobody is guilty of what does not fail."""
    if "stage" not in answer:
        return Measured(case, note=answer.get("error") or last_line_of(ended))
    nobody = ended.exit_code == _NOTHING_FOUND and answer["kind"] == "pass"
    stage = NOBODY if nobody else answer["stage"] if answer["found"] else ""
    part, op, workaround, kernel = (answer[key] or {} for key in ("part", "op", "workaround", "kernel"))
    return Measured(
        case,
        stage=stage,
        part=f"{part['kind']} {part['name']}" if part else "",
        op=op.get("op", ""),
        way=op.get("way", ""),
        workaround=workaround.get("code", ""),
        verified=bool(answer["workaround_verified"]),
        confidence=answer["confidence"],
        kernel=kernel.get("name", ""),
        compiles=answer["compiles"] or None,
        seconds=answer["seconds"] or None,
        note="; ".join(filter(None, [answer["stopped"], *answer["notes"]]))[:300],
    )


def append(path: Path, one: Measured) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(one)) + "\n")


def read(path: Path) -> list[Measured]:
    """What a file holds. A last line that was cut off by a kill is left out: that case is run again."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [Measured(**json.loads(line)) for line in lines if line.endswith("\n")]


def latest(found: Iterable[Measured]) -> dict[str, Measured]:
    """By case; what was measured last counts."""
    return {one.case: one for one in found}
