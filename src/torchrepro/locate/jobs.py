"""What `locate` runs in a process of its own: a verdict with parts of the compiler turned off."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchrepro.judge.models import Phase
from torchrepro.repro import Repro


def judge_without(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """The verdict with `off` left out; what the compilation meets is noted in the file `met`."""
    from torchrepro.locate.turning_off import Met, turned_off
    from torchrepro.oracle.jobs import judge

    with Path(payload["met"]).open("a") as file, turned_off(payload["off"], Met(file)):
        return judge(repro, payload, phase)
