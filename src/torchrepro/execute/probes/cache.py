"""From a warm compile cache: judged against eager, as what filled the cache was.

The caches of whole graphs, of inductor and of AOT autograd, are off everywhere else in torchrepro; here they
are on, in a directory of their own. What was compiled is forgotten in between, so that the second compilation
reads what the first has written. They want the context of a capture: a static graph is captured again.
"""

from __future__ import annotations

from dataclasses import replace

from torchrepro.execute.probes.context import Finding, ProbeContext, Trial
from torchrepro.nouns.repro import Place
from torchrepro.nouns.verdict import Verdict
from torchrepro.torch_api import dynamo
from torchrepro.torch_api.inductor import clear_caches, graph_cache_hits, graph_caches


def probe_cache(context: ProbeContext) -> Finding:
    repro = context.repro
    if repro.compiler.name != "inductor":
        return context.not_asked("only inductor has these caches")
    if repro.place is Place.AFTER_CAPTURE and not repro.symbols:
        repro = replace(repro, compiler=replace(repro.compiler, recapture=True))
    captured = replace(context, repro=repro)
    with graph_caches():
        cold = captured.judge_baseline(captured.artefact())
        return captured.try_each(cold, [Trial("warm", lambda: _warm(captured), "from a warm cache")])


def _warm(context: ProbeContext) -> Verdict | None:
    """Return the verdict on what comes from the cache; None where the cache was not used."""
    hits = graph_cache_hits()
    dynamo.reset()
    clear_caches()
    verdict = context.judge(context.artefact().subject(context.repro.inputs))
    return verdict if graph_cache_hits() > hits or verdict.fails else None
