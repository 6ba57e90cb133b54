"""What the three probes of cost share: the baseline, and the verdict on a ratio."""

from __future__ import annotations

from dataclasses import replace

from torchrepro.execute.artefacts import Artefact
from torchrepro.execute.probes.context import Finding, ProbeContext
from torchrepro.nouns.verdict import Verdict


def baseline_of(context: ProbeContext) -> tuple[Artefact, str]:
    """Return what the cost is compared with: eager, or the repro as another compiler compiles it."""
    against = context.probe.against
    if against is None:
        return context.artefact(compiles=False), "eager"
    return context.artefact(replace(context.repro, compiler=against)), str(against)


def finding_of(context: ProbeContext, baseline: Verdict, words: str, *, fails: bool) -> Finding:
    if fails:
        return Finding(Verdict(context.probe.kind, summary=words, notes=baseline.notes), context.probe)
    return Finding(context.passed(words, baseline.notes), context.probe)
