"""Which of a program's graphs fails: by what a bundle says of itself, or judged one by one, none twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from torchrepro.engine.processes.child import Outcome
from torchrepro.execute.record_graphs import save_graphs
from torchrepro.locate.context import Inquiry
from torchrepro.locate.stages import graph_in_call, graph_of
from torchrepro.nouns.repro import Origin, Place, Repro
from torchrepro.nouns.verdict import Comparison, Difference, Kind, LeafComparison, Verdict

ORIGIN = Origin(1, 3, source="model.py:12 in forward")


def repro_of(number: float, origin: Origin | None = None) -> Repro:
    return Repro(torch.fx.symbolic_trace(lambda x: (x + number,)), (torch.ones(2),), origin=origin)


class Call:
    """An oracle for a whole call: recording writes some graphs, of which those that add 1 fail."""

    workers = 1

    def __init__(self, numbers: Sequence[float]) -> None:
        self.numbers = numbers
        self.judged = 0

    def ran(self, job: str, repro: Repro, *, directory: str, **_: Any) -> Outcome:
        origins = [Origin(index, len(self.numbers)) for index in range(len(self.numbers))]
        repros = [repro_of(number, origin) for number, origin in zip(self.numbers, origins, strict=True)]
        bundles = save_graphs(repros, Path(directory))
        return Outcome(result={"bundles": bundles, "problems": ["one graph could not be kept"]})

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        for index, candidate in enumerate(candidates):
            self.judged += 1
            added = candidate.graph(torch.zeros(1))[0].item()
            yield index, Verdict(Kind.MISMATCH if added == 1 else Kind.PASS)


def inquiry(repro: Repro, verdict: Verdict, oracle: Any = None) -> Inquiry:
    return Inquiry(repro, verdict, oracle)


def wrong(path: str) -> Verdict:
    leaf = LeafComparison(path, Difference.VALUE)
    return Verdict(Kind.MISMATCH, comparison=Comparison((leaf,)))


@pytest.mark.parametrize(
    ("origin", "path", "name"),
    [
        (ORIGIN, "out", "graph 1 of 3"),
        (Origin(0, 1), "out", "graph 0"),
        (ORIGIN, "grad.weight", "backward of graph 1 of 3"),
        (replace(ORIGIN, backward=True), "out", "backward of graph 1 of 3"),
        (replace(ORIGIN, compilation=1), "out", "graph 1 of 3, compiled again (2. time)"),
    ],
)
def test_a_bundle_of_one_graph_says_which_one_it_is(origin: Origin, path: str, name: str) -> None:
    found = graph_of(inquiry(repro_of(1, origin), wrong(path)), "the/bundle")
    assert found is not None
    assert (found.name, found.source, found.bundle) == (name, origin.source, "the/bundle")
    assert (found.number, found.count) == (origin.number, origin.seen)


def test_of_a_graph_that_nobody_caught_in_a_program_nothing_is_said() -> None:
    assert graph_of(inquiry(repro_of(1), wrong("out")), "b") is None


def test_the_first_guilty_graph_of_a_call_is_kept_and_none_after_it_is_compiled(tmp_path: Path) -> None:
    oracle = Call([0, 2, 1, 3])
    asked = inquiry(replace(repro_of(7), place=Place.BEFORE_CAPTURE), wrong("out"), oracle)
    found = graph_in_call(asked, tmp_path / "graph", ())
    assert found is not None
    assert (found.graph.number, found.graph.count, found.graph.name) == (2, 4, "graph 2 of 4")
    assert found.verdict.kind is Kind.MISMATCH
    assert (tmp_path / "graph" / "manifest.json").exists()
    assert (oracle.judged, asked.asked) == (3, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph"], "nothing temporary is left"
    assert asked.notes == ["one graph could not be kept"]


@pytest.mark.parametrize(
    ("numbers", "said"), [([0, 2], "none of its 2 graphs"), ([0], "capture is the suspect")]
)
def test_where_no_graph_fails_by_itself_capture_is_suspected(
    tmp_path: Path, numbers: list[float], said: str
) -> None:
    asked = inquiry(replace(repro_of(7), place=Place.BEFORE_CAPTURE), wrong("out"), Call(numbers))
    assert graph_in_call(asked, tmp_path / "graph", ()) is None
    assert said in asked.notes[-1]
