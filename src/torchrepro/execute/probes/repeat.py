"""The same inputs, the same bits: one artefact is called again and again.

Atomic additions in parallel loops may end in any order. Torch documents that, and
`torch.use_deterministic_algorithms` replaces them: what that setting makes equal, and what is no more than
rounding, is no failure.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from torchrepro.execute.artefacts import Artefact
from torchrepro.execute.probes.context import Finding, ProbeContext, Trial, giving, kept
from torchrepro.judge.models import Judged, Subject
from torchrepro.judge.rule import Rule
from torchrepro.nouns.verdict import Verdict

_RUNS = 6


def probe_repeat(context: ProbeContext) -> Finding:
    artefact, judged = context.artefact(), Judged()
    baseline = context.judge_baseline(artefact, judged)
    if not baseline.testable or baseline.fails:
        return Finding(baseline, context.probe)
    repeated = _differing(context, artefact, judged)
    if repeated is None:
        return Finding(context.passed(f"the same bits in {_RUNS} runs", baseline.notes), context.probe)
    number, verdict, rounding = repeated
    if rounding:
        if any("not bitwise deterministic" in note for note in baseline.notes):
            return Finding(context.passed("as eager, it differs by rounding", baseline.notes), context.probe)
        if _is_documented(context):
            note = f"run {number} differs by rounding; torch.use_deterministic_algorithms makes it equal"
            return Finding(context.passed(note, baseline.notes), context.probe)
    found = context.found(verdict, Trial("again", lambda: None, f"run {number} differs from the first"))
    return replace(found, probe=context.probe)


def _differing(context: ProbeContext, artefact: Artefact, judged: Judged) -> tuple[int, Verdict, bool] | None:
    """Return the first run whose bits differ from the first one's, and whether the rule allows that."""
    first, truth = kept(judged.runs["compiled"]), judged.runs.get("truth")
    again = artefact.subject(context.repro.inputs).compiled
    strictly = Subject(giving(first), again, lambda draws: (truth or first, ()))
    for number in range(2, _RUNS + 1):
        seen = Judged()
        verdict = context.judge(strictly, rule=Rule(strict=True), judged=seen)
        if verdict.fails:
            return number, verdict, _allowed(context, strictly, seen)
    return None


def _allowed(context: ProbeContext, subject: Subject, seen: Judged) -> bool:
    """Return whether the rule lets the run that was seen differ from the first."""
    if context.rule.strict or "compiled" not in seen.runs:
        return False
    run = kept(seen.runs["compiled"])
    return not context.judge(replace(subject, compiled=giving(run))).fails


def _is_documented(context: ProbeContext) -> bool:
    """Return whether the runs agree where torch is told to use deterministic algorithms."""
    mode = torch.get_deterministic_debug_mode()
    if mode:
        return False  # it has been told already
    torch.set_deterministic_debug_mode("warn")
    try:
        artefact, judged = context.artefact(), Judged()
        baseline = context.judge_baseline(artefact, judged)
        return not baseline.fails and "compiled" in judged.runs and not _differing(context, artefact, judged)
    finally:
        torch.set_deterministic_debug_mode(mode)
