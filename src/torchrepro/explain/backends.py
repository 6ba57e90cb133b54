"""Backends: the simplest one that still fails, which tells the stage. None of them calls a C++ compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchrepro.execute.backends import LADDER, culprit_step, simpler_backends
from torchrepro.explain.sentences import Evidence, verbed
from torchrepro.explain.variations import Outcome, Trial, Variation
from torchrepro.nouns.explanation import Area, Fact
from torchrepro.nouns.repro import Repro


def propose(repro: Repro) -> list[Variation]:
    """The repro with each simpler backend."""
    return [
        Variation(Area.BACKENDS, "backend", step.backend, candidate, f"the backend {step.backend}")
        for step, candidate in simpler_backends(repro)
    ]


def facts(repro: Repro, trials: Sequence[Trial]) -> list[Fact]:
    """Which stage the failure comes in with; nothing where no backend could be tried."""
    ours = [trial for trial in trials if trial.variation.area is Area.BACKENDS]
    evidence = Evidence.of(ours, own=repro.compiler.name)
    if evidence.tried < 2:
        return []
    fails = {Outcome.FAILS: True, Outcome.PASSES: False}
    place = culprit_step([*(fails.get(trial.outcome) for trial in ours), True])
    passes = verbed(evidence.passing, "pass") if evidence.passing else ""
    if place is None or place == len(ours):
        sentence = f"{repro.compiler.name}'s own: the backend{'s' * (len(evidence.passing) > 1)} {passes}"
    else:
        first = next(step for step in LADDER if step.backend == ours[place].variation.label)
        sentence = f"comes in with {first.words}: the backend {first.backend} fails too"
        sentence += f", {passes}" if passes else ""
    # The stage is worth telling even if no simpler backend could be asked that passes.
    return [replace(evidence.fact(Area.BACKENDS, "backend", sentence), matters=True)]
