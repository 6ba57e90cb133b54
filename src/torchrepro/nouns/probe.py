"""Probe: a question about a compiled repro that the ordinary comparison with eager does not ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchrepro.nouns.errors import BundleError
from torchrepro.nouns.repro import Compiler
from torchrepro.nouns.verdict import Kind, Signature, Verdict, as_data

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

FINDINGS = {
    Kind.SIZES: "is right for some sizes and wrong for others",
    Kind.REPEAT: "gives other bits when it is called again",
    Kind.RECOMPILE: "is wrong when it compiles again or with other choices",
    Kind.BATCH: "is right for a batch and wrong for a row of it",
    Kind.CACHE: "is wrong when it comes from a warm compile cache",
    Kind.HOLD: "changes what an earlier call has returned",
    Kind.THREADS: "is wrong with another number of threads",
    Kind.SLOW: "takes more time than the baseline",
    Kind.FAT: "takes more memory than the baseline",
    Kind.SLOW_COMPILE: "takes more work to compile than the baseline",
}
"""What is wrong, as the end of a sentence about the compiler."""

COSTS = (Kind.SLOW, Kind.FAT, Kind.SLOW_COMPILE)
"""Those about time and memory: measured, where the others compare values."""
MORE = {Kind.SLOW: 1e-4, Kind.FAT: 1 << 18, Kind.SLOW_COMPILE: 0.05}
"""What a cost may be above its baseline however small that is: seconds of a call, bytes, seconds of CPU time.

Guards and wrappers take some microseconds of each call, and nobody looks at less than 256 KiB.
"""
FILLED = "filled"
"""The variation of `repeat` in which new memory holds other bytes in each run."""
FILL, FILLS = -6, (0x3F, 0x40, 0xBF, 0xC0, 0x41)
"""Glibc's number of the option (`M_PERTURB` of mallopt(3)), and bytes that make usual numbers of floats."""
TRACED = Compiler("aot_eager")
"""The baseline of the work of compiling: capture and AOT autograd, which every compilation passes through."""
_GRANTED, _GRANTED_OVER_TRACED = 1.5, 20.0


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
    """How many times the cost of the baseline is granted; None: the number of the probe."""
    against: Compiler | None = None
    """The baseline of a cost; None: eager, or for the time of compilation AOT autograd alone."""

    def __post_init__(self) -> None:
        if self.kind not in PROBES:
            raise BundleError(
                f"{self.kind} is not what a probe looks for",
                next_step=f"there are: {', '.join(PROBES)}",
            )

    @classmethod
    def of(cls, kind: Kind, *, seconds: float, against: Compiler | None, threshold: float | None) -> Probe:
        """Return the probe of a kind; the baseline and the threshold are for costs alone."""
        if kind in COSTS:
            return cls(kind, seconds=seconds, against=against, threshold=threshold)
        return cls(kind, seconds=seconds)

    @property
    def granted(self) -> float:
        """How many times the cost of the baseline is no failure."""
        traced = self.kind is Kind.SLOW_COMPILE and self.against is None
        return self.threshold or (_GRANTED_OVER_TRACED if traced else _GRANTED)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(self.tries)})" if self.tries else self.kind.value


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """What one probe found, in the graphs that it was asked about."""

    kind: Kind
    """Of the probe."""
    verdict: Verdict
    """The first that fails; else one that passes, if there is one."""
    place: str = ""
    """The graph, where there are several."""
    bundle: Path | None = None
    """Shows the failure."""

    @property
    def word(self) -> str:
        """What a row says first: `pass`, `not asked`, or the kind of the failure."""
        return "not asked" if self.verdict.kind is Kind.NOT_COMPARABLE else self.verdict.kind.value

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "probe": self.kind.value,
            "verdict": self.verdict.kind.value,
            "signature": str(Signature.of(self.verdict)),
            "summary": self.verdict.summary,
            "place": self.place,
            "bundle": None if self.bundle is None else str(self.bundle),
            "seconds": round(self.verdict.seconds, 3),
            "details": as_data(self.verdict.to_dict()),
        }


def exit_code_of(answers: Sequence[ProbeAnswer]) -> int:
    """Return 0 if nothing was found, 1 if something was, 125 if nothing could be asked."""
    if any(answer.verdict.fails for answer in answers):
        return 1
    return 0 if any(answer.verdict.testable for answer in answers) else 125
