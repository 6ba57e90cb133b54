"""Jobs on a repro that show where they run (run by hosts on the workers of an executor)."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from torchrepro.engine.sandbox.confinement import INSIDE
from torchrepro.nouns.repro import Repro


def family(repro: Repro, payload: Any, phase: Any) -> Any:
    """The pids of the candidate, of its host and of the worker; written to a file before it waits."""
    host = os.getppid()
    stat = Path(f"/proc/{host}/stat").read_text().rpartition(")")[2].split()
    pids = [os.getpid(), host, int(stat[1])]
    if "told" in payload:
        with open(payload["told"], "a") as file:
            file.write(" ".join(map(str, pids)) + "\n")
    phase("run")
    while "wait" in payload and not Path(payload["wait"]).exists():
        time.sleep(0.02)
    return pids


def values(repro: Repro, payload: Any, phase: Any) -> Any:
    """The sum of each input, and whether it runs in a sandbox."""
    sums = [float(value.double().sum()) for value in repro.inputs]
    return {"sums": sums, "confined": os.environ.get(INSIDE) == "1"}
