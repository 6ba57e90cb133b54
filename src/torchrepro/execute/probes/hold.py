"""What an earlier call has returned, after later calls: the same bits as when it was returned.

Compiled code that reuses memory, and CUDA graphs, whose results live in the graph's own memory, can overwrite
it. Results that share memory with a buffer of the model change in eager too: such a model is not asked.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchrepro.execute.artefacts import Artefact
from torchrepro.execute.probes.context import Finding, ProbeContext, Trial, giving, kept, shifted
from torchrepro.judge.clone import clone_inputs
from torchrepro.judge.execute import Run, verdict_of
from torchrepro.judge.models import Subject
from torchrepro.judge.rule import Rule
from torchrepro.nouns.verdict import Verdict

_CALLS = 4
"""CUDA graphs are recorded in the second call and replayed from the third on."""


def probe_hold(context: ProbeContext) -> Finding:
    compiled = context.artefact()
    baseline = context.judge_baseline(compiled)
    inputs = context.repro.inputs
    other = tuple(shifted(value) for value in inputs)

    def judge() -> Verdict | None:
        for between in (other, inputs):  # not every model takes other values
            in_eager = _hold(context, context.artefact(compiles=False), between)
            if in_eager.raised is None:
                return None if in_eager.fails else _hold(context, compiled, between)
        return None

    return context.try_each(baseline, [Trial("kept", judge, "after later calls, results have changed")])


def _hold(context: ProbeContext, artefact: Artefact, other: tuple[Any, ...]) -> Verdict:
    """Call on alternating inputs, keep what is returned, and compare it with copies made at once."""
    held: list[tuple[Run, Run]] = []
    try:
        for number in range(_CALLS):
            run = artefact.run(clone_inputs(other if number % 2 else context.repro.inputs))
            results = Run(outputs=run.outputs, gradients=run.gradients)
            held.append((kept(results), results))
        copies, later = _joined([copy for copy, _ in held]), kept(_joined([live for _, live in held]))
    except Exception as exc:  # results in the memory of a CUDA graph raise when they are read too late
        return verdict_of(exc)
    verdict = context.judge(Subject(giving(copies), giving(later)), rule=Rule(strict=True))
    return replace(verdict, notes=())  # that there is no float64 run goes without saying


def _joined(runs: list[Run]) -> Run:
    """Return one run with the results and gradients of all calls."""
    gradients = {
        f"{name} of call {number}": value
        for number, run in enumerate(runs)
        for name, value in run.gradients.items()
    }
    return Run(outputs=[run.outputs for run in runs], gradients=gradients)
