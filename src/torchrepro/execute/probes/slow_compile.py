"""Does compiling take more work than it should? Instructions of this process, or its CPU time.

The baseline is capture and AOT autograd alone, which every compilation passes through, unless another
compiler or option is named. What a C++ compiler takes in a process of its own is not counted, nor is the
first compilation of a process, which imports and registers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torchrepro.execute.probes.context import Finding, ProbeContext
from torchrepro.execute.probes.measure import INSTRUCTIONS, counted_work, interleaved
from torchrepro.judge.clone import clone_inputs
from torchrepro.nouns.probe import MORE, TRACED
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind
from torchrepro.torch_api import dynamo
from torchrepro.torch_api.inductor import clear_caches

_INSTRUCTIONS_PER_SECOND = 2e9
_PAIRS = 7


def probe_slow_compile(context: ProbeContext) -> Finding:
    against = context.probe.against or TRACED
    other = replace(context.repro, compiler=against)
    verdict = context.judge_baseline(context.artefact())
    if verdict.kind is not Kind.PASS:
        return Finding(verdict, context.probe)
    _compile(context, other)
    context.phase("measure")
    with counted_work() as work:
        ratio = interleaved(
            lambda: work.of(partial(_compile, context, context.repro)),
            lambda: work.of(partial(_compile, context, other)),
            granted=context.probe.granted,
            seconds=context.probe.seconds,
            early=1,
            fewest=3,
            most=_PAIRS,
        )
        unit = work.unit
    per_second = _INSTRUCTIONS_PER_SECOND if unit == INSTRUCTIONS else 1.0
    slower = ratio.exceeds(context.probe.granted, by=MORE[Kind.SLOW_COMPILE] * per_second)
    words = f"{ratio} the {unit} of {against}: {ratio.cost:.3g} to compile, {against} {ratio.baseline:.3g}"
    return context.finding_of_cost(
        verdict, f"{words} (granted: {context.probe.granted:g} times)", fails=slower
    )


def _compile(context: ProbeContext, repro: Repro) -> None:
    """Compile and call once; nothing that this process remembers of former compilations is used."""
    dynamo.reset()
    clear_caches()
    context.artefact(repro).execute(clone_inputs(repro.inputs))
