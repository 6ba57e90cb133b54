"""Is the compiled code slower than the baseline? Calls of both alternate; the whole interval must say so."""

from __future__ import annotations

import time
from functools import partial

from torchrepro.execute.artefacts import Artefact
from torchrepro.execute.probes.context import Finding, ProbeContext
from torchrepro.execute.probes.measure import interleaved, seconds_of
from torchrepro.judge.clone import clone_inputs
from torchrepro.nouns.probe import MORE
from torchrepro.nouns.verdict import Kind

_WARM_UP = 3
_ROW, _ROW_SECONDS = 5, 0.2
_MEASUREMENTS = 2
"""How many of them have to say that it is slower: a neighbour may disturb one side all the time."""


def probe_slow(context: ProbeContext) -> Finding:
    compiled, (other, name) = context.artefact(), context.baseline_of_cost()
    verdict = context.judge_baseline(compiled)
    if verdict.kind is not Kind.PASS:
        return Finding(verdict, context.probe)
    context.phase("measure")
    for _ in range(_WARM_UP):
        _seconds(context, compiled)
        _seconds(context, other)
    for _ in range(_MEASUREMENTS):
        ratio = interleaved(
            partial(_seconds, context, compiled),
            partial(_seconds, context, other),
            granted=context.probe.granted,
            seconds=min(20.0, context.probe.seconds / 2),
        )
        slower = ratio.exceeds(context.probe.granted, by=MORE[Kind.SLOW])
        if not slower:
            break
    least = f"at best {ratio.cost * 1e3:.3g} ms a call, {name} {ratio.baseline * 1e3:.3g}"
    words = f"{ratio} the time of {name}: {least} (granted: {context.probe.granted:g} times)"
    return context.finding_of_cost(verdict, words, fails=slower)


def _seconds(context: ProbeContext, artefact: Artefact) -> float:
    """Return the least time of a few calls in a row: a neighbour on the machine disturbs some of them."""
    taken: list[float] = []
    until = time.monotonic() + _ROW_SECONDS
    while not taken or (len(taken) < _ROW and time.monotonic() < until):
        inputs = clone_inputs(context.repro.inputs)
        taken.append(seconds_of(partial(artefact.execute, inputs)))
    return min(taken)
