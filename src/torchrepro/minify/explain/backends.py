"""Backends: the simplest one that still fails, which tells the stage. None of them calls a C++ compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchrepro.minify.explain.explanation import Fact
from torchrepro.minify.explain.variations import Area, Outcome, Trial, Variation
from torchrepro.minify.explain.words import Evidence, verbed
from torchrepro.repro import Place, Repro

# Each does what the one before it does, and one thing more.
_LADDER = {
    "eager": "capture",
    "aot_eager": "AOT autograd",
    "aot_eager_decomp_partition": "the decompositions",
}


def propose(repro: Repro) -> list[Variation]:
    """The repro with each simpler backend. Below AOT only the decompositions are left to ask about."""
    steps = ("aot_eager_decomp_partition",) if repro.place is Place.AFTER_AOT else tuple(_LADDER)
    if repro.compiler.name in _LADDER:
        steps = steps[: list(steps).index(repro.compiler.name)] if repro.compiler.name in steps else ()
    return [
        Variation(
            Area.BACKENDS,
            "backend",
            name,
            replace(repro, compiler=replace(repro.compiler, name=name, mode=None, options={})),
            f"the backend {name}",
        )
        for name in steps
    ]


def facts(repro: Repro, trials: Sequence[Trial]) -> list[Fact]:
    """Which stage the failure comes in with; nothing where no backend could be tried."""
    ours = [trial for trial in trials if trial.variation.area is Area.BACKENDS]
    evidence = Evidence.of(ours, own=repro.compiler.name)
    if evidence.tried < 2:
        return []
    failing = [trial.variation.label for trial in ours if trial.outcome is Outcome.FAILS]
    passes = verbed(evidence.passing, "pass") if evidence.passing else ""
    if not failing:
        sentence = f"{repro.compiler.name}'s own: the backend{'s' * (len(evidence.passing) > 1)} {passes}"
    else:
        first = min(failing, key=list(_LADDER).index)
        sentence = f"comes in with {_LADDER[first]}: the backend {first} fails too"
        sentence += f", {passes}" if passes else ""
    # The stage is worth telling even if no simpler backend could be asked that passes.
    return [replace(evidence.fact(Area.BACKENDS, "backend", sentence), matters=True)]
