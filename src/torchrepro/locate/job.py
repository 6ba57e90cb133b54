"""The search process of `locate`: load, warm up, establish, then one step after the other.

It never runs the user's computation nor compiled code itself: its children do. It has one thread, so that it
can be forked at any moment. (`engine/search/process.py` is how it is started.)
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.engine.baseline import Original, establish
from torchrepro.engine.processes.reports import Reporter
from torchrepro.engine.search.process import SearchRequest
from torchrepro.engine.search.run_directory import write_json
from torchrepro.engine.search.setup import Stop, isolated_oracle, loaded, use_scratch, warming_up
from torchrepro.locate.component import Found, find_part
from torchrepro.locate.context import Inquiry
from torchrepro.locate.graphs import graph_in_call, graph_of
from torchrepro.locate.kernels import find_kernel
from torchrepro.locate.ops import find_op
from torchrepro.locate.sensitivity import find_sensitivity
from torchrepro.locate.settings import LocateDirectory, LocateSettings
from torchrepro.locate.stages import Ladder, find_stage
from torchrepro.locate.watched_graph import Watching
from torchrepro.locate.workaround import find_workaround
from torchrepro.locate.wrong_values import error_growth, find_birth
from torchrepro.nouns.errors import DoesNotFail, SearchStopped
from torchrepro.nouns.repro import Place
from torchrepro.nouns.results import Confidence, Located, Way
from torchrepro.nouns.verdict import Kind, Stage


def locate(request: SearchRequest, reporter: Reporter) -> dict[str, Any]:
    """The whole job, in order."""
    began = time.monotonic()
    settings = msgspec.convert(request.settings, LocateSettings)
    directory = LocateDirectory(Path(request.directory))
    stop = Stop()
    stop.listen()

    reporter.phase("load")
    repro, trusted = loaded(Path(request.bundle), trusted=settings.trusted, own=settings.own)
    with isolated_oracle(repro, settings.jobs, stop) as oracle:
        with warming_up(request, repro, stop) as warming:
            reporter.phase("establish")
            try:
                original = establish(repro, oracle)
            except DoesNotFail as healthy:
                no_culprit = Located(bundle=request.bundle, kind=Kind.PASS, notes=(str(healthy),))
                return _kept(no_culprit, directory)
            reporter.phase("warm")
        oracle = oracle.after(original.verdict)
        use_scratch(directory)
        stop.after(settings.time_limit)
        inquiry = Inquiry(
            repro,
            original.verdict,
            oracle,
            repeats=original.repeats,
            on_step=lambda words: reporter.send(step=words),
            asked=warming + original.runs,
            notes=_notes_on(original),
        )
        case = Case(inquiry, directory, trusted)
        found = Located(bundle=request.bundle, kind=original.verdict.kind)
        reporter.phase("locate")
        found = answered(STEPS, case, found)
        stop.ignore_interrupts()
    found = replace(
        found,
        confidence=confidence_in(found),
        compiles=case.compiles,
        seconds=time.monotonic() - began,
        notes=tuple(dict.fromkeys((*repro.notes, *case.notes))),
    )
    return _kept(found, directory)


@dataclass(eq=False)
class Case:
    """What the steps share: the inquiry, and what one step found that only another one needs."""

    inquiry: Inquiry
    directory: LocateDirectory
    trusted: tuple[str, ...] = ()
    ladder: Ladder | None = None
    part: Found | None = None
    _former: list[Inquiry] = field(default_factory=list)

    def go_on_with(self, inquiry: Inquiry) -> None:
        """From now on look into another repro: the culprit graph of a whole call."""
        self._former.append(self.inquiry)
        self.inquiry = inquiry

    @cached_property
    def watching(self) -> Watching | None:
        return Watching.of(self.inquiry)

    @property
    def compiles(self) -> int:
        return sum(one.compiles for one in (*self._former, self.inquiry))

    @property
    def notes(self) -> list[str]:
        return [note for one in (*self._former, self.inquiry) for note in one.notes]


def _stage(case: Case, found: Located) -> Located:
    case.ladder = find_stage(case.inquiry)
    return replace(found, stage=case.ladder.stage, rungs=case.ladder.rungs)


def _graph(case: Case, found: Located) -> Located:
    inquiry = case.inquiry
    if inquiry.repro.place is not Place.BEFORE_CAPTURE:
        return replace(found, graph=graph_of(inquiry, found.bundle))
    if found.stage is Stage.CAPTURE:
        return found  # no graph is the culprit
    culprit = graph_in_call(inquiry, case.directory.graph, case.trusted)
    if culprit is None:
        return found
    case.go_on_with(
        Inquiry(
            culprit.repro,
            culprit.verdict,
            inquiry.oracle,
            repeats=inquiry.repeats,
            on_step=inquiry.on_step,
        )
    )
    return replace(found, graph=culprit.graph)


def _op(case: Case, found: Located) -> Located:
    return replace(found, op=find_op(case.inquiry, case.watching))


def _part(case: Case, found: Located) -> Located:
    case.part = find_part(case.inquiry, found.stage, suspects=(found.op.op,) if found.op else ())
    return replace(found, part=case.part.part if case.part else None)


def _workaround(case: Case, found: Located) -> Located:
    if case.ladder is None:
        return found
    return replace(found, workaround=find_workaround(case.inquiry, case.ladder, case.part))


def _growth(case: Case, found: Located) -> Located:
    return replace(found, growth=error_growth(case.watching))


def _sensitivity(case: Case, found: Located) -> Located:
    return replace(found, sensitivity=find_sensitivity(case.watching, found.op))


def _birth(case: Case, found: Located) -> Located:
    return replace(found, birth=find_birth(case.watching))


def _kernel(case: Case, found: Located) -> Located:
    if found.stage is Stage.CAPTURE:
        return found
    return replace(found, kernel=find_kernel(case.inquiry, found.op, case.directory.path))


@dataclass(frozen=True, slots=True)
class Step:
    """One question: `answer` returns what is known with its answer in it."""

    question: str
    answer: Callable[[Case, Located], Located]


STEPS = (
    Step("which stage fails first", _stage),
    Step("which graph fails", _graph),
    Step("which op is the first that is wrong", _op),
    Step("what inside the stage is the culprit", _part),
    Step("what makes it go away", _workaround),
    Step("how the error grows along the graph", _growth),
    Step("how ill-conditioned the computation is", _sensitivity),
    Step("where the first NaN or Inf is born", _birth),
    Step("which kernel computes the op", _kernel),
)
"""In this order. What cannot be answered is None, and the others go on."""


def answered(steps: Sequence[Step], case: Case, found: Located) -> Located:
    """Run all steps in order. A fault of torchrepro costs one answer and a note; a stop keeps the others."""
    for step in steps:
        case.inquiry.on_step(step.question)
        try:
            found = step.answer(case, found)
        except SearchStopped as stopped:
            return replace(found, stopped=str(stopped))
        except Exception as exc:
            fact = f"{type(exc).__name__}: {str(exc).partition(chr(10))[0][:200]}"
            case.inquiry.notes.append(f"{step.question}: unknown: torchrepro itself failed ({fact})")
    return found


def confidence_in(found: Located) -> Confidence:
    """As sure as what was seen: the failure gone with something turned off, or there with the op alone."""
    if not found.found:
        return Confidence.UNKNOWN
    gone = found.part is not None or bool(found.workaround and found.workaround.verified)
    alone = found.op is not None and found.op.way is Way.WINDOW
    return Confidence.VERIFIED if gone or alone else Confidence.LIKELY


def _notes_on(original: Original) -> list[str]:
    rate = f"fails in {original.failing} of {original.runs} runs" if original.is_flaky else ""
    return [note for note in (original.note, rate) if note]


def _kept(found: Located, directory: LocateDirectory) -> dict[str, Any]:
    """The answer, written down; what is needed only while a run lasts goes."""
    data = replace(found, directory=str(directory.path)).to_dict()
    write_json(directory.result, data)
    shutil.rmtree(directory.cache, ignore_errors=True)
    return data
