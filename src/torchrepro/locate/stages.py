"""The stage: which of the steps from eager to the compiler under test brings the failure in.

The ladder is not monotone: one backend may differ by an accident while the compiler under test agrees, and
the kind of failure may change on the way up (an error under `aot_eager`, a crash of the kernel made from the
same wrong graph). So the guilty stage is where the unbroken run of failing rungs begins that ends at the
compiler under test, whatever the kinds are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchrepro.execute.backends import Step, last_stage_of, steps_below, with_backend
from torchrepro.locate.context import Inquiry
from torchrepro.nouns.located import Rung
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Kind, Stage, Verdict

# Nothing is said about the compiler: neither a failure nor the absence of one.
_SAYS_NOTHING = frozenset({Kind.INVALID, Kind.NOT_COMPARABLE})


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs that were asked, the compiler under test last, and the stage that is guilty."""

    rungs: tuple[Rung, ...]

    @property
    def guilty(self) -> Rung | None:
        return guilty_rung(self.rungs)

    @property
    def stage(self) -> Stage:
        return self.guilty.stage if self.guilty else Stage.NONE


def find_stage(inquiry: Inquiry) -> Ladder:
    """Ask every cheaper backend; the compiler under test has answered already."""
    repro = inquiry.repro
    steps = rungs_of(repro)
    inquiry.on_step("the stage: " + ", ".join(step.backend for step in steps))
    verdicts = inquiry.verdicts([with_backend(repro, step.backend) for step in steps])
    own = repro.compiler.name
    return Ladder(
        (
            *(
                _rung(inquiry, step.backend, step.stage, verdict)
                for step, verdict in zip(steps, verdicts, strict=True)
            ),
            _rung(inquiry, own, last_stage_of(own), inquiry.verdict),
        )
    )


def rungs_of(repro: Repro) -> tuple[Step, ...]:
    """The backends to ask."""
    can_capture = captures(repro)
    return tuple(step for step in steps_below(repro) if can_capture or step.stage is not Stage.CAPTURE)


def captures(repro: Repro) -> bool:
    """Whether running it captures anything: only then can capture be guilty, or be told to do nothing."""
    again = repro.place is Place.AFTER_CAPTURE and repro.compiler.recapture
    return repro.place is Place.BEFORE_CAPTURE or again


def guilty_rung(rungs: Sequence[Rung]) -> Rung | None:
    """The first of the failing rungs that lead to the last without a pass between; None if that passes."""
    if not rungs or not rungs[-1].fails:
        return None
    guilty = rungs[-1]
    for rung in reversed(rungs):
        if rung.fails:
            guilty = rung
        elif rung.kind not in _SAYS_NOTHING:
            break
    return guilty


def table(rungs: Sequence[Rung]) -> list[tuple[str, str, str, str]]:
    """Rows for a reader: backend, the stage that it adds, what it did, and `guilty` where that is the one."""
    guilty = guilty_rung(rungs)
    return [
        (
            rung.backend,
            rung.stage.value,
            f"{rung.kind.value}: {rung.summary}" if rung.summary and rung.fails else rung.kind.value,
            "guilty" if rung is guilty else "",
        )
        for rung in rungs
    ]


def _rung(inquiry: Inquiry, backend: str, stage: Stage, verdict: Verdict) -> Rung:
    if inquiry.is_gone(verdict) and verdict.kind is not Kind.PASS:
        return Rung(backend, stage, Kind.PASS, "raises as eager does")
    return Rung(backend, stage, verdict.kind, verdict.summary)
