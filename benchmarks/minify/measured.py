"""What one tool did with one failing program, kept as a line of JSON the moment it is known."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch

Side = Literal["ours", "theirs"]
SIDES: tuple[Side, ...] = ("ours", "theirs")


@dataclass(frozen=True, slots=True)
class Measured:
    """None: not known, because it did not come so far."""

    case: str
    side: Side
    failed: bool
    """Whether the program failed here at all, as far as this tool could see."""
    caught: str = ""
    """What was caught: a verdict of ours, the place and level of theirs; empty for nothing."""
    mode: str = ""
    start_ops: int | None = None
    ops: int | None = None
    inputs: int | None = None
    elements: int | None = None
    queries: int | None = None
    """As the tool itself counts."""
    compiles: int | None = None
    """Compilations that reached inductor while it minified, all processes together."""
    explaining: int | None = None
    """How many of these only told what matters, which torch's own tool does not do."""
    seconds: float | None = None
    """Of minifying, with the start of the process; catching is not counted."""
    finished: bool = False
    """Whether it came to a result by itself within the time limit."""
    stopped: bool = False
    """Whether the time limit ended it."""
    lines: int | None = None
    reproduces: bool | None = None
    """Whether the final script fails when run again in a fresh process."""
    same_failure: bool | None = None
    """Whether that failure is the original's."""
    script: str = ""
    """The final script itself, to be read afterwards."""
    note: str = ""
    torch: str = torch.__version__


def append(path: Path, measured: Measured) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(asdict(measured)) + "\n")


def read(path: Path) -> list[Measured]:
    """What a file holds. A last line that was cut off by a kill is left out: that case is run again."""
    if not path.exists():
        return []
    *whole, rest = path.read_text().split("\n")
    return [Measured(**json.loads(line)) for line in (whole if not rest.endswith("}") else [*whole, rest])]


def latest(found: Iterable[Measured]) -> dict[tuple[str, Side], Measured]:
    """By case and side; what was measured last counts."""
    return {(one.case, one.side): one for one in found}
