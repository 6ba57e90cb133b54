"""The search process of `locate`: load, warm up, run the baseline, then one step after the other.

It never runs the user's computation nor compiled code itself: its children do. It has one thread, so that it
can be forked at any moment. (`engine/search/process.py` is how it is started.)
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.load import load_verified
from torchrepro.bundle.read import read_manifest
from torchrepro.cut.units import CALLS
from torchrepro.engine.baseline import LONG, establish, read_original, recorded_here
from torchrepro.engine.processes.child import Reporter
from torchrepro.engine.search.process import SearchRequest
from torchrepro.engine.search.run_directory import RunDirectory, write_json
from torchrepro.engine.search.setup import Stop, Timeline, isolated_oracle, loaded, use_scratch, warming_up
from torchrepro.engine.store import Store, store_knowing
from torchrepro.execute.backends import with_backend
from torchrepro.locate.component import Found, find_part, proved
from torchrepro.locate.context import Inquiry
from torchrepro.locate.kernels import find_kernel
from torchrepro.locate.operators import check_operators, find_operator, rung_of
from torchrepro.locate.ops import find_op, find_op_alone, op_alone
from torchrepro.locate.sensitivity import find_sensitivity
from torchrepro.locate.settings import LocateDirectory, LocateSettings
from torchrepro.locate.stages import Ladder, culprit_rung, find_stage, graph_in_call, graph_of
from torchrepro.locate.users_code import find_users_code
from torchrepro.locate.watched_graph import Watching
from torchrepro.locate.workaround import find_workaround
from torchrepro.locate.wrong_values import error_growth, find_birth
from torchrepro.nouns.errors import DoesNotFail, SearchStopped, TorchReproError
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.results import Confidence, GuiltyOp, Located, Rung, Way
from torchrepro.nouns.verdict import Kind, Stage


def locate(request: SearchRequest, reporter: Reporter) -> dict[str, Any]:
    """Run all steps of the job and return the result as plain data."""
    timeline = Timeline(reporter, request.asked)
    settings = msgspec.convert(request.settings, LocateSettings)
    directory = LocateDirectory(Path(request.directory))
    stop = Stop()
    stop.listen()

    timeline.phase("load")
    repro = loaded(Path(request.bundle), timeline, trusted=settings.trusted, jobs=settings.jobs)
    with isolated_oracle(repro, settings.jobs, stop, timeline, rehearse=request.rehearse) as oracle:
        with warming_up(request, repro, stop) as warming:
            timeline.phase("establish")
            try:
                former = RunDirectory(Path(request.known)) if request.known else None
                known = read_original(former.original) if former else None
                if known is None and request.recorded:
                    known = recorded_here(read_manifest(Path(request.bundle)), took=LONG)
                original = known or establish(repro, oracle, repeat_quick=True)
            except DoesNotFail as healthy:
                no_culprit = Located(bundle=request.bundle, kind=Kind.PASS, notes=(str(healthy),))
                return _kept(no_culprit, directory, request)
            timeline.phase("warm")
        oracle = oracle.after(original.verdict)
        use_scratch(directory)
        stop.after(settings.time_limit)
        inquiry = Inquiry(
            repro,
            original.verdict,
            oracle,
            repeats=original.repeats,
            on_step=lambda words: reporter.send(step=words),
            asked=warming + (0 if known else original.runs),
            notes=original.notes,
            store=store_knowing(former.verdicts) if former else Store(),
        )
        case = Case(inquiry, directory, settings.trusted, likely=_ops_left(former, settings.trusted))
        found = Located(bundle=request.bundle, kind=original.verdict.kind)
        timeline.phase("locate")
        found = answered(ANSWERS, case, found, timeline)
        answered_after = timeline.seconds
        if found.found and not found.blamed and not found.stopped:
            reporter.send(culprit=f"{found.stage.value}, {found.op.op if found.op else 'no op'}")
            found = answered(EVIDENCE, case, found, timeline)
        stop.ignore_interrupts()
    found = replace(
        found,
        confidence=confidence_in(found),
        compiles=case.inquiry.asked,
        seconds=timeline.seconds,
        answered_after=answered_after,
        timeline=tuple(timeline.moments),
        notes=tuple(dict.fromkeys((*repro.notes, *case.inquiry.notes))),
    )
    return _kept(found, directory, request)


@dataclass(eq=False)
class Case:
    """What the steps share: the inquiry, and what one step found that only another one needs."""

    inquiry: Inquiry
    directory: LocateDirectory
    trusted: tuple[str, ...] = ()
    part: Found | None = None
    fakes: Rung | None = None
    """What comparing fake with real results has shown."""
    cheap: Inquiry | None = None
    """About the first backend that fails, if that is a simpler one: it takes a fraction of the time."""
    likely: tuple[str, ...] = ()
    """Nodes that `minify` has left of the graph."""

    @property
    def takes_long(self) -> bool:
        """Whether a compile of the whole takes so long that an op alone is asked in its place."""
        return self.inquiry.repro.place is not Place.BEFORE_CAPTURE and self.inquiry.verdict.seconds > LONG

    @property
    def watching(self) -> Watching | None:
        """The values inside the graph, compiled with the first backend that fails."""
        found = self._watching
        if found is None or self.cheap is None:
            return found
        return replace(found, inquiry=self.cheap)

    @cached_property
    def _watching(self) -> Watching | None:
        return Watching.of(self.inquiry)

    def alone(self, op: GuiltyOp | None) -> Inquiry | None:
        """Return an inquiry about an op that fails by itself; None if it does not."""
        if op is None or op.way is not Way.WINDOW or self.watching is None:
            return None
        single = op_alone(self._watching or self.watching, op.node)
        if single is None:
            return None
        verdict = self.inquiry.verdict_on(single)
        return self.inquiry.about(single, verdict) if verdict.fails else None


Answer = dict[str, Any]
"""Fields of `Located` that a step has found."""


def _operators(case: Case, found: Located) -> Answer:
    """Blame a custom operator before any compiler; then no further step is needed."""
    checks = check_operators(case.inquiry)
    case.inquiry.notes.extend(checks.skipped)
    case.fakes = rung_of(checks)
    answer: Answer = {"violations": checks.violations}
    if not checks.violations:
        return answer
    # In a whole call the operator is left out of the graph that fails.
    answer |= _graph(case, found)
    graph = case.inquiry.repro.place is not Place.BEFORE_CAPTURE
    accused = find_operator(case.inquiry, case.watching if graph else None, checks)
    if accused is not None:
        answer |= {**accused._asdict(), "rungs": (case.fakes,) if case.fakes else ()}
    return answer


def _op_alone(case: Case, found: Located) -> Answer:
    """Where the whole takes long, look for an op that fails alone before the whole is compiled."""
    watching = case.watching if case.takes_long else None
    return {} if watching is None else {"op": find_op_alone(watching, case.likely)}


def _stage(case: Case, found: Located) -> Answer:
    """Go up the ladder with an op that fails alone, if one is known, else with the whole."""
    single = case.alone(found.op)
    ladder = find_stage(single or case.inquiry)
    first = culprit_rung(ladder.rungs)
    if single is not None and found.op is not None:
        case.inquiry.notes.append(f"the stage was found with {found.op.node} alone")
    elif first is not None and first.backend != case.inquiry.repro.compiler.name:
        simpler = with_backend(case.inquiry.repro, first.backend)
        case.cheap = case.inquiry.about(simpler, case.inquiry.verdict_on(simpler))
    return {**ladder._asdict(), "rungs": (*([case.fakes] if case.fakes else []), *ladder.rungs)}


def _graph(case: Case, found: Located) -> Answer:
    inquiry = case.inquiry
    if found.graph is not None:
        return {}
    if inquiry.repro.place is not Place.BEFORE_CAPTURE:
        return {"graph": graph_of(inquiry, found.bundle)}
    if found.stage is Stage.CAPTURE:
        return {}  # no graph is the culprit
    culprit = graph_in_call(inquiry, case.directory.graph, case.trusted)
    if culprit is None:
        return {}
    # The following steps use the culprit graph.
    case.inquiry = inquiry.about(culprit.repro, culprit.verdict)
    if case.cheap is not None:
        simpler = with_backend(culprit.repro, case.cheap.repro.compiler.name)
        verdict = inquiry.verdict_on(simpler)
        case.cheap = inquiry.about(simpler, verdict) if verdict.fails else None
    return {"graph": culprit.graph}


def _part(case: Case, found: Located) -> Answer:
    """Look in the op alone first, where that fails: each query there takes a fraction of the time."""
    op, single = found.op, case.alone(found.op)
    whole = None if single is not None and case.takes_long else case.inquiry
    for inquiry in filter(None, (single, whole)):
        part = find_part(inquiry, found.stage, suspects=(op.op,) if op else ())
        if part is not None:
            case.part = proved(case.inquiry, part, op, single.repro if single else _single(case, op))
            break
    return {"part": case.part.part if case.part else None}


def _single(case: Case, op: GuiltyOp | None) -> Repro | None:
    return op_alone(case.watching, op.node) if op is not None and case.watching is not None else None


def _workaround(case: Case, found: Located) -> Answer:
    backends = tuple(rung for rung in found.rungs if rung is not case.fakes)
    ladder = Ladder(backends, found.stage)
    return {"workaround": find_workaround(case.inquiry, ladder, case.part, case.alone(found.op))}


def _sensitivity(case: Case, found: Located) -> Answer:
    return {"sensitivity": find_sensitivity(case.watching, found.op)}


def _growth(case: Case, found: Located) -> Answer:
    if case.takes_long and found.op is not None and found.op.way is Way.WINDOW:
        return {}  # the op fails alone, and to measure the others the whole is compiled
    return {"growth": error_growth(case.watching)}


def _kernel(case: Case, found: Located) -> Answer:
    if found.stage is Stage.CAPTURE or (found.stage is not Stage.BACKEND and case.takes_long):
        return {}  # the kernel computes what it was given, and to find it the whole is compiled
    single = case.alone(found.op) if case.takes_long else None
    return {"kernel": find_kernel(single or case.inquiry, found.op, case.directory.path)}


def _op(case: Case, found: Located) -> Answer:
    return {} if found.op is not None else {"op": find_op(case.cheap or case.inquiry, case.watching)}


Steps = Mapping[str, Callable[[Case, Located], Answer]]
ANSWERS: Steps = {
    "which operators do not do what they declare": _operators,
    "which code of the user in the settings is wrong": lambda case, found: find_users_code(
        case.inquiry, found
    ),
    "which op fails alone": _op_alone,
    "which stage fails first": _stage,
    "which graph fails": _graph,
    "which op is the first that is wrong": _op,
    "what inside the stage is the culprit": _part,
    "what makes it go away": _workaround,
}
"""The steps to the culprit, by the question that each answers. A step without an answer returns None."""
EVIDENCE: Steps = {
    "how the error grows along the graph": _growth,
    "how ill-conditioned the computation is": _sensitivity,
    "where the first NaN or Inf is born": lambda case, _: {"birth": find_birth(case.watching)},
    "which kernel computes the op": _kernel,
}
"""The steps after the culprit is known: Ctrl-C skips them."""


def answered(steps: Steps, case: Case, found: Located, timeline: Timeline | None = None) -> Located:
    """Run all steps in order. An error of torchrepro in a step adds a note; a stop keeps earlier answers."""
    for question, answer in steps.items():
        case.inquiry.on_step(question)
        if timeline is not None:
            timeline.mark(question, case.inquiry.asked)
        try:
            found = replace(found, **answer(case, found))
            if found.blamed:
                return found  # the other questions are about the compiler
        except SearchStopped as stopped:
            return replace(found, stopped=str(stopped))
        except Exception as exc:
            fact = f"{type(exc).__name__}: {str(exc).partition(chr(10))[0][:200]}"
            case.inquiry.notes.append(f"{question}: unknown: torchrepro itself failed ({fact})")
    return found


def confidence_in(found: Located) -> Confidence:
    """Return `VERIFIED` if a part was shown wrong, the op fails alone, or the stage turned off is enough.

    A part that merely hides the failure proves nothing, nor does a workaround that turns it off.
    """
    if found.blamed or not found.found:
        return found.confidence
    if found.part is not None:
        gone = found.part.verified
    else:
        gone = bool(found.workaround and found.workaround.verified)
    alone = found.op is not None and found.op.way is Way.WINDOW
    return Confidence.VERIFIED if gone or alone else Confidence.LIKELY


def _ops_left(former: RunDirectory | None, trusted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the nodes of the graph that `minify` has left, if it is done: they keep their names."""
    try:
        left = load_verified(former.minimal, trusted=trusted) if former is not None else None
    except (TorchReproError, OSError):  # there is none, or it needs what is not trusted
        return ()
    return () if left is None else tuple(node.name for node in left.graph.graph.nodes if node.op in CALLS)


def _kept(found: Located, directory: LocateDirectory, request: SearchRequest) -> dict[str, Any]:
    """Write the result, remove the cache of the run, and return the result as plain data."""
    data = replace(found, directory=str(directory.path)).to_dict()
    write_json(directory.result, data)
    if not request.stays:
        shutil.rmtree(directory.cache, ignore_errors=True)
    return data
