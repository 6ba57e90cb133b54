"""One thread against several: compiled and run with each number, and judged against eager with the same."""

from __future__ import annotations

import os
from functools import partial

import torch

from torchrepro.execute.artefacts import Artefact
from torchrepro.execute.probes.context import Finding, ProbeContext, Trial
from torchrepro.nouns.verdict import Verdict


def probe_threads(context: ProbeContext) -> Finding:
    several = max(2, os.cpu_count() or 2)
    compiled = context.artefact()
    baseline = context.judge_baseline(compiled)
    counts = [count for count in dict.fromkeys((1, several, 3)) if count != torch.get_num_threads()]
    trials = [
        Trial(str(count), partial(_with, context, count), f"compiled and run with {_threads(count)}")
        for count in counts
    ]
    trials += [
        Trial(
            f"run-{count}",
            partial(_with, context, count, compiled),
            f"compiled with {_threads(torch.get_num_threads())}, run with {_threads(count)}",
        )
        for count in counts
    ]
    return context.try_each(baseline, trials)


def _with(context: ProbeContext, count: int, compiled: Artefact | None = None) -> Verdict:
    """Judge eager, truth and compiled, all with this number of threads."""
    former = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        artefact = compiled or context.artefact()
        return context.judge(artefact.subject(context.repro.inputs))
    finally:
        torch.set_num_threads(former)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
