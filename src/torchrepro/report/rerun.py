"""Run a bundle for its report, in a process of its own: its verdict here and now, and where it is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.engine.processes.fresh_process import run_isolated
from torchrepro.engine.processes.outcome import Outcome, run_without_reference_if_it_dies
from torchrepro.engine.processes.supervise import verdict_of
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.verdict import Verdict
from torchrepro.report.contents import ErrorMap


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run has shown; `verdict` is None where nothing came of it, and the note says why."""

    verdict: Verdict | None = None
    errors: tuple[ErrorMap, ...] = ()
    note: str = ""


def measured(
    bundle: Path,
    *,
    trusted: tuple[str, ...] = (),
    time_limit: float = 300.0,
    environ: Mapping[str, str] | None = None,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Measured:
    """Run a bundle. Whatever goes wrong is a note: a report is made of what there is."""
    payload = {"bundle": str(bundle.resolve()), "trusted": list(trusted)}

    def ran(**more: Any) -> Outcome:
        return run_isolated(
            "torchrepro.report.jobs:measure",
            {**payload, **more},
            time_limit=time_limit,
            environ=environ,
            on_phase=on_phase,
        )

    try:
        outcome = run_without_reference_if_it_dies(ran)
        if outcome.result is None:
            return Measured(verdict_of(outcome, time_limit))
        verdict = msgspec.convert(outcome.result["verdict"], Verdict)
        maps = msgspec.convert(outcome.result["maps"], tuple[ErrorMap, ...], strict=False)
        return Measured(replace(verdict, seconds=outcome.seconds), maps)
    except (TorchReproError, HarnessError) as exc:
        return Measured(note=f"could not be run for this report: {str(exc).splitlines()[0]}")
