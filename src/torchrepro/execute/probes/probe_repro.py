"""Probe a repro in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from torchrepro.execute.judge_repro import load_for_job
from torchrepro.execute.probes.context import Finding, ProbeContext
from torchrepro.execute.probes.table import row_of
from torchrepro.judge.models import Phase, Phases
from torchrepro.judge.rule import Rule
from torchrepro.nouns.probe import Probe
from torchrepro.nouns.repro import Repro
from torchrepro.state.ambient import applied_settings


def probe(payload: dict[str, Any], phase: Any) -> Any:
    """Ask one probe about a bundle; send it back, narrowed to what fails: a job for a separate process."""
    repro = load_for_job(payload, phase)
    asked = replace(repro, probe=msgspec.convert(payload["probe"], Probe))
    finding = probe_repro(asked, fp64=payload.get("fp64", True), phase=phase)
    phase.send(probe=msgspec.to_builtins(finding.probe))
    return msgspec.to_builtins(finding.verdict)


def probe_repro(
    repro: Repro,
    *,
    rule: Rule | None = None,
    fp64: bool = True,
    phase: Phase = lambda name: None,
) -> Finding:
    """Ask what `repro.probe` says. A crash or a hang takes the process with it."""
    assert repro.probe is not None, "the caller asks"
    rule = rule or Rule(strict=repro.strict, tol=repro.tolerance)
    phases = phase if isinstance(phase, Phases) else Phases(phase)
    context = ProbeContext(repro, repro.probe, rule, phases, fp64)
    with applied_settings(repro.ambient):
        return row_of(repro.probe.kind).run(context)
