"""The ladder of torch's own backends: each does what the one before it does, and one thing more.

None of them calls a C++ compiler, so that they are cheap to ask.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Stage


@dataclass(frozen=True, slots=True)
class Step:
    """A backend, and the stage that it adds to those before it."""

    backend: str
    stage: Stage
    words: str


LADDER = (
    Step("eager", Stage.CAPTURE, "capture"),
    Step("aot_eager", Stage.AOT, "AOT autograd"),
    Step("aot_eager_decomp_partition", Stage.DECOMPOSITION, "the decompositions"),
)

# What else torch registers for debugging, by the last stage that it goes through.
_AKIN = {
    "eager_noexcept": Stage.CAPTURE,
    "pre_dispatch_eager": Stage.CAPTURE,
    "eager_debug": Stage.CAPTURE,
    "aot_eager_default_partitioner": Stage.AOT,
    "aot_eager_decomp_partition_with_mode": Stage.DECOMPOSITION,
    "aot_eager_decomp_partition_crossref": Stage.DECOMPOSITION,
}


def last_stage_of(backend: str) -> Stage:
    """The last stage that a compiler goes through."""
    known = {step.backend: step.stage for step in LADDER}
    return known.get(backend) or _AKIN.get(backend, Stage.BACKEND)


def steps_below(repro: Repro) -> tuple[Step, ...]:
    """The backends that do less than the compiler under test. A graph after AOT is past the first two."""
    own = last_stage_of(repro.compiler.name)
    stages = [step.stage for step in LADDER]
    below = LADDER[: stages.index(own)] if own in stages else LADDER
    if repro.place is Place.AFTER_AOT:
        return tuple(step for step in below if step.stage is Stage.DECOMPOSITION)
    return below


def with_backend(repro: Repro, backend: str) -> Repro:
    """The repro with another backend, which has neither the mode nor the options of its compiler."""
    return replace(repro, compiler=replace(repro.compiler, name=backend, mode=None, options={}))
