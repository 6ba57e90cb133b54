"""Probe: a question about a compiled repro that the ordinary comparison with eager does not ask."""

from __future__ import annotations

from dataclasses import dataclass

from torchrepro.nouns.errors import BundleError
from torchrepro.nouns.repro import Compiler
from torchrepro.nouns.verdict import Kind

PROBES = (
    Kind.SIZES,
    Kind.REPEAT,
    Kind.RECOMPILE,
    Kind.BATCH,
    Kind.CACHE,
    Kind.HOLD,
    Kind.THREADS,
    Kind.SLOW,
    Kind.FAT,
    Kind.SLOW_COMPILE,
)
"""The kinds of failure that a probe looks for, in the order in which they are asked."""

COSTS = (Kind.SLOW, Kind.FAT, Kind.SLOW_COMPILE)
"""Those about time and memory: measured, where the others compare values."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What is varied, and what may not change with it (`execute/probes/`)."""

    kind: Kind
    """One of `PROBES`."""
    tries: tuple[str, ...] = ()
    """Names of the variations to try, all where empty. A bundle of a failure names those that fail."""
    seconds: float = 60.0
    """No further variation is begun after this many seconds."""
    threshold: float | None = None
    """How many times the cost of the baseline is granted; None: the probe's own number."""
    against: Compiler | None = None
    """The baseline of a cost; None: eager, or for the time of compilation AOT autograd alone."""

    def __post_init__(self) -> None:
        if self.kind not in PROBES:
            raise BundleError(
                f"{self.kind} is not what a probe looks for",
                next_step=f"there are: {', '.join(PROBES)}",
            )

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.tries)})" if self.tries else self.kind.value
