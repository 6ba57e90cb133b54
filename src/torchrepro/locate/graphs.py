"""The graph: which of the compiled graphs of a program fails.

A bundle of one graph says itself which one it is: the graphs before it were judged when it was caught. Of a
whole call the graphs are recorded first, in one run that compiles nothing; then each is judged on its own,
and none twice. Where none fails alone, what is wrong is between them.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchrepro.bundle.load import load_bundle
from torchrepro.engine.baseline import Failure
from torchrepro.engine.check_bundle import first_failing
from torchrepro.locate.context import Inquiry
from torchrepro.nouns.repro import Origin, Place, Repro
from torchrepro.nouns.results import GuiltyGraph
from torchrepro.nouns.verdict import Verdict

_RECORD = "torchrepro.execute.record_graphs:record_call"


@dataclass(frozen=True, eq=False)
class Found:
    """The culprit graph of a whole call, as a repro of its own."""

    graph: GuiltyGraph
    repro: Repro
    verdict: Verdict


def graph_of(inquiry: Inquiry, bundle: str) -> GuiltyGraph | None:
    """What a bundle of one graph says of itself; None where that is not known, or of a whole call."""
    origin = inquiry.repro.origin
    if origin is None or inquiry.repro.place is Place.BEFORE_CAPTURE:
        return None
    return _culprit(origin, bundle, inquiry.failure)


def graph_in_call(inquiry: Inquiry, keep_in: Path, trusted: Collection[str]) -> Found | None:
    """The first graph of a whole call that fails by itself as the call does; its bundle is kept."""
    scratch = keep_in.with_name(f".{keep_in.name}s")
    scratch.mkdir()
    try:
        recorded = _recorded(inquiry, scratch)
        repros = {path: load_bundle(path, trusted=tuple(trusted)) for path in recorded}
        culprit = first_failing(_judged(inquiry, repros), inquiry.verdict.kind)
        if culprit is None:
            inquiry.notes.append(_none_fails(len(recorded)))
            return None
        path, verdict = culprit
        origin = repros[path].origin or Origin(recorded.index(path), len(recorded))
        path.rename(keep_in)  # its tensors stay mapped
        return Found(_culprit(origin, str(keep_in), Failure.of(verdict)), repros[path], verdict)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _recorded(inquiry: Inquiry, directory: Path) -> list[Path]:
    outcome = inquiry.ran(_RECORD, inquiry.repro, compiles=0, directory=str(directory))
    if outcome.result is None:
        inquiry.notes.append("its graphs could not be recorded: the run did not finish")
        return []
    inquiry.notes.extend(outcome.result["problems"])
    return [Path(path) for path in outcome.result["bundles"]]


def _judged(inquiry: Inquiry, repros: Mapping[Path, Repro]) -> Iterator[tuple[Path, Verdict]]:
    """Judge as many at a time as there are workers."""
    paths = list(repros)
    for start in range(0, len(paths), inquiry.oracle.workers):
        some = paths[start : start + inquiry.oracle.workers]
        yield from zip(some, inquiry.verdicts([repros[path] for path in some]), strict=True)


def _culprit(origin: Origin, bundle: str, failure: Failure) -> GuiltyGraph:
    """Right results next to wrong gradients: what is wrong was made for backward."""
    of_gradients = failure.places == {"grad"} and not origin.backward
    name = f"backward of {origin}" if of_gradients else str(origin)
    return GuiltyGraph(origin.number, origin.seen, bundle, name, origin.source)


def _none_fails(count: int) -> str:
    if not count:
        return "no graph is named: none could be recorded"
    if count == 1:
        return "its one graph does not fail by itself: capture is the suspect"
    return f"none of its {count} graphs fails by itself: capture, or what is between them, is the suspect"
