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
    if not (_is_inductor(context) or ":" in repro.compiler.name or repro.compiler.function is not None):
        return context.not_asked("only inductor has these caches")
    if repro.place is Place.AFTER_CAPTURE and not repro.symbols:
        repro = replace(repro, compiler=replace(repro.compiler, recapture=True))
    captured = replace(context, repro=repro)
    with graph_caches():
        cold = captured.judge_baseline(captured.artefact())
        return captured.try_each(cold, [Trial("warm", lambda: _warm(captured), "from a warm cache")])


def _is_inductor(context: ProbeContext) -> bool:
    return context.repro.compiler.name == "inductor"


def _warm(context: ProbeContext) -> Verdict | None:
    """Return the verdict on what comes from the cache; None where the cache was not used.

    Inductor always uses it, if it does not raise before. Another compiler may call inductor.
    """
    hits = graph_cache_hits()
    dynamo.reset()
    clear_caches()
    verdict = context.judge(context.artefact().subject(context.repro.inputs))
    used = graph_cache_hits() > hits or (_is_inductor(context) and verdict.fails)
    return verdict if used else None
