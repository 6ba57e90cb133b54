"""Probe a repro in this process."""

from __future__ import annotations

from torchrepro.execute.probes.context import Finding, ProbeContext
from torchrepro.execute.probes.table import row_of
from torchrepro.judge.models import Phase, Phases
from torchrepro.judge.rule import Rule
from torchrepro.nouns.repro import Repro
from torchrepro.state.ambient import applied_settings


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
