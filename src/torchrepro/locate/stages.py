"""The stage: which of the steps from eager to the compiler under test brings the failure in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchrepro.execute.backends import culprit_step, last_stage_of, simpler_backends
from torchrepro.locate.context import Inquiry
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.results import Rung
from torchrepro.nouns.verdict import Kind, Stage, Verdict

# Nothing is said about the compiler: neither a failure nor the absence of one.
_SAYS_NOTHING = frozenset({Kind.INVALID, Kind.NOT_COMPARABLE})


@dataclass(frozen=True, slots=True)
class Ladder:
    """The rungs that were asked, the compiler under test last, and the stage that brings the failure in."""

    rungs: tuple[Rung, ...]

    @property
    def culprit(self) -> Rung | None:
        return culprit_rung(self.rungs)

    @property
    def stage(self) -> Stage:
        return self.culprit.stage if self.culprit else Stage.NONE


def find_stage(inquiry: Inquiry) -> Ladder:
    """Ask every simpler backend; the compiler under test has answered already."""
    repro = inquiry.repro
    asked = [
        (step, candidate)
        for step, candidate in simpler_backends(repro)
        if captures(repro) or step.stage is not Stage.CAPTURE
    ]
    inquiry.on_step("the stage: " + ", ".join(step.backend for step, _ in asked))
    verdicts = inquiry.verdicts([candidate for _, candidate in asked])
    own = repro.compiler.name
    backends = [*((step.backend, step.stage) for step, _ in asked), (own, last_stage_of(own))]
    answers = zip(backends, (*verdicts, inquiry.verdict), strict=True)
    return Ladder(tuple(_rung(inquiry, *backend, verdict) for backend, verdict in answers))


def captures(repro: Repro) -> bool:
    """Whether running it captures anything: only then can capture be the culprit, or be turned off."""
    again = repro.place is Place.AFTER_CAPTURE and repro.compiler.recapture
    return repro.place is Place.BEFORE_CAPTURE or again


def culprit_rung(rungs: Sequence[Rung]) -> Rung | None:
    """Return the rung at which the failure comes in; None if the last one passes."""
    place = culprit_step([None if rung.kind in _SAYS_NOTHING else rung.fails for rung in rungs])
    return None if place is None else rungs[place]


def _rung(inquiry: Inquiry, backend: str, stage: Stage, verdict: Verdict) -> Rung:
    if inquiry.is_gone(verdict) and verdict.kind is not Kind.PASS:
        return Rung(backend, stage, Kind.PASS, "raises as eager does")
    return Rung(backend, stage, verdict.kind, verdict.summary)
