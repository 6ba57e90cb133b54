"""Outcome: how a job in a process of its own ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended. Exactly one of `result`, `error`, `signal`, `timed_out`, `exit_code` explains it."""

    result: Any = None
    error: Mapping[str, str] | None = None
    """`fact`, `next_step` and `traceback` of an error; its `kind` is `user` (theirs to mend), `memory` (there
    was not enough of it) or `harness` (ours)."""
    phase: str = "start"
    signal: str = ""
    timed_out: bool = False
    exit_code: int | None = None
    seconds: float = 0.0
    output_tail: str = ""

    @property
    def died_in_reference(self) -> bool:
        """Whether the float64 run ended the process: worth running again without it."""
        return self.phase == "reference" and self.result is None and self.error is None


def run_without_reference_if_it_dies(run: Callable[..., Outcome]) -> Outcome:
    """Call `run()`; if its float64 run ended the process, return what `run(fp64=False)` gives."""
    outcome = run()
    return run(fp64=False) if outcome.died_in_reference else outcome


def signal_name(exit_code: int | None) -> str:
    """The signal that an exit code, as `subprocess` has it, stands for; empty if none."""
    if exit_code is None or exit_code >= 0:
        return ""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"
