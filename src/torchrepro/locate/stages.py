"""Find the stage and the graph: which step from eager to the compiler fails, and which graph of a program.

A bundle of one graph records which one it is: the graphs before it were judged when it was caught. For a
whole call the graphs are recorded first, in one run that compiles nothing; then each is judged once, on its
own. If none fails alone, the fault is in capture or between them.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from torchrepro.bundle.load import load_verified
from torchrepro.engine.baseline import Failure
from torchrepro.engine.check_bundle import first_failing
from torchrepro.execute.backends import culprit_step, last_stage_of, simpler_backends
from torchrepro.locate.context import Inquiry
from torchrepro.locate.watched_graph import OF_VALUES
from torchrepro.nouns.repro import Origin, Place, Repro
from torchrepro.nouns.results import GuiltyGraph, Rung
from torchrepro.nouns.verdict import Kind, Stage, Verdict

# These verdicts show neither a failure of the compiler nor its absence.
_SAYS_NOTHING = frozenset({Kind.INVALID, Kind.NOT_COMPARABLE})
_RECORD = "torchrepro.execute.record_graphs:record_call"


class Ladder(NamedTuple):
    """The rungs that were tested, the compiler under test last, and the stage that introduces the failure."""

    rungs: tuple[Rung, ...]
    stage: Stage


def find_stage(inquiry: Inquiry) -> Ladder:
    """Judge every simpler backend and return the ladder; the compiler under test is judged already."""
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
    rungs = []
    for (backend, stage), verdict in answers:
        raises_as_eager = inquiry.is_gone(verdict) and verdict.kind is not Kind.PASS
        seen = (Kind.PASS, "raises as eager does") if raises_as_eager else (verdict.kind, verdict.summary)
        if verdict.fails and not _may_cause(verdict, inquiry):
            seen = (Kind.NOT_COMPARABLE, f"another failure: {verdict.summary}")
        rungs.append(Rung(backend, stage, *seen))
    culprit = culprit_rung(rungs)
    return Ladder(tuple(rungs), Stage.NONE if culprit is None else culprit.stage)


def _may_cause(verdict: Verdict, inquiry: Inquiry) -> bool:
    """Return whether a simpler backend's failure may be the one that the compiler under test shows.

    Wrong gradients do not explain a compile error or a wrong output. Errors may change from stage to stage
    (an exception under `aot_eager`, a crash of the kernel made from the same wrong graph).
    """
    if verdict.kind not in OF_VALUES or inquiry.verdict.kind not in OF_VALUES:
        return (verdict.kind in OF_VALUES) == (inquiry.verdict.kind in OF_VALUES)
    places = Failure.of(verdict).places
    return not places or not inquiry.failure.places or not places.isdisjoint(inquiry.failure.places)


def captures(repro: Repro) -> bool:
    """Return whether a run captures anything: only then can capture be the culprit, or be turned off."""
    again = repro.place is Place.AFTER_CAPTURE and repro.compiler.recapture
    return repro.place is Place.BEFORE_CAPTURE or again


def culprit_rung(rungs: Sequence[Rung]) -> Rung | None:
    """Return the rung that introduces the failure; None if the last one passes."""
    place = culprit_step([None if rung.kind in _SAYS_NOTHING else rung.fails for rung in rungs])
    return None if place is None else rungs[place]


class FoundGraph(NamedTuple):
    """The culprit graph of a whole call, as its own repro."""

    graph: GuiltyGraph
    repro: Repro
    verdict: Verdict


def graph_of(inquiry: Inquiry, bundle: str) -> GuiltyGraph | None:
    """Return which graph a bundle of one graph holds; None if that is unknown, or for a whole call."""
    origin = inquiry.repro.origin
    if origin is None or inquiry.repro.place is Place.BEFORE_CAPTURE:
        return None
    return _culprit(origin, bundle, inquiry.failure)


def graph_in_call(inquiry: Inquiry, keep_in: Path, trusted: Collection[str]) -> FoundGraph | None:
    """Return the first graph of a whole call that fails alone as the call does, and keep its bundle."""
    scratch = keep_in.with_name(f".{keep_in.name}s")
    scratch.mkdir()
    try:
        recorded = _recorded(inquiry, scratch)
        repros = {path: load_verified(path, trusted=tuple(trusted)) for path in recorded}

        def judged() -> Iterator[tuple[Path, Verdict]]:
            """Judge as many at a time as there are workers."""
            for start in range(0, len(recorded), inquiry.oracle.workers):
                some = recorded[start : start + inquiry.oracle.workers]
                yield from zip(some, inquiry.verdicts([repros[path] for path in some]), strict=True)

        culprit = first_failing(judged(), inquiry.verdict.kind)
        if culprit is None:
            suspect = "capture, or what is between them, is the suspect"
            inquiry.notes.append(
                {
                    0: "no graph is named: none could be recorded",
                    1: "its one graph does not fail by itself: capture is the suspect",
                }.get(len(recorded), f"none of its {len(recorded)} graphs fails by itself: {suspect}")
            )
            return None
        path, verdict = culprit
        origin = repros[path].origin or Origin(recorded.index(path), len(recorded))
        path.rename(keep_in)  # its tensors stay mapped
        return FoundGraph(_culprit(origin, str(keep_in), Failure.of(verdict)), repros[path], verdict)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _recorded(inquiry: Inquiry, directory: Path) -> list[Path]:
    outcome = inquiry.ran(_RECORD, inquiry.repro, compiles=0, directory=str(directory))
    if outcome.result is None:
        inquiry.notes.append("its graphs could not be recorded: the run did not finish")
        return []
    inquiry.notes.extend(outcome.result["problems"])
    return [Path(path) for path in outcome.result["bundles"]]


def _culprit(origin: Origin, bundle: str, failure: Failure) -> GuiltyGraph:
    """Return the culprit graph; if only gradients are wrong, it is named as the backward graph."""
    of_gradients = failure.places == {"grad"} and not origin.backward
    name = f"backward of {origin}" if of_gradients else str(origin)
    return GuiltyGraph(origin.number, origin.seen, bundle, name, origin.source)
