"""One dynamic artefact over many sizes within its guards, each judged against eager.

A graph that was captured with symbols is compiled with them. Any other is captured once more with dynamic
shapes: Dynamo gives equal sizes one symbol, so they change together here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from torchrepro.execute.artefacts import Artefact, GraphArtefact
from torchrepro.execute.probes.context import Finding, ProbeContext, Trial
from torchrepro.graph_text.metadata import fake_inputs
from torchrepro.nouns.repro import Place
from torchrepro.nouns.verdict import Verdict
from torchrepro.state.other_sizes import Resized, resized_symbols, resized_together
from torchrepro.torch_api.fake import fits_guards

_OUTSIDE = "fail_on_recompile"
"""The stance under which torch refuses what its guards do not let through; its error names it."""


def probe_sizes(context: ProbeContext) -> Finding:
    repro = context.repro
    if repro.earlier:
        return context.not_asked("the failure needs earlier calls, whose sizes would have to change too")
    if repro.symbols:
        variants, artefact = resized_symbols(repro), context.artefact()
    elif repro.place in (Place.AFTER_CAPTURE, Place.BEFORE_CAPTURE):
        recapture = repro.place is Place.AFTER_CAPTURE
        dynamic = replace(repro.compiler, dynamic=True, recapture=recapture)
        variants, artefact = (
            resized_together(repro.inputs),
            context.artefact(replace(repro, compiler=dynamic)),
        )
    else:
        return context.not_asked("the sizes of this graph are fixed")
    baseline = context.judge_baseline(artefact)
    return context.try_each(baseline, (_trial(context, artefact, variant) for variant in variants))


def _trial(context: ProbeContext, artefact: Artefact, variant: Resized) -> Trial:
    def judge() -> Verdict | None:
        if isinstance(artefact, GraphArtefact) and not _fits(artefact, variant.inputs):
            return None
        with torch.compiler.set_stance(_OUTSIDE):
            verdict = context.judge(artefact.subject(variant.inputs))
        if verdict.raised is not None and _OUTSIDE in verdict.raised.message:
            return None
        return verdict

    return Trial(str(variant.size), judge, f"{variant.what} = {variant.size}")


def _fits(artefact: GraphArtefact, inputs: tuple[Any, ...]) -> bool:
    """Return whether the guards let these inputs through that compiling a graph with symbols has added."""
    graph, _ = artefact.function()
    return fits_guards(fake_inputs(graph), inputs)
