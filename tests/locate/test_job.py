"""The steps of locate one after the other: what a fault, a stop and an answer do to the result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from synthetic_values import CountingOracle, random_graph

from torchrepro.locate import job
from torchrepro.locate.context import Inquiry
from torchrepro.locate.job import Case, answered, confidence_in
from torchrepro.locate.settings import LocateDirectory
from torchrepro.locate.stages import FoundGraph
from torchrepro.nouns.errors import SearchStopped
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.results import Confidence, GuiltyGraph, GuiltyOp, Located, Part, Way, Workaround
from torchrepro.nouns.verdict import Kind, Stage, Verdict

START = Located(bundle="b", kind=Kind.MISMATCH)
FOUND = replace(START, stage=Stage.BACKEND)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    repro = Repro(torch.fx.symbolic_trace(lambda x: (x + 1,)), (torch.ones(2),))
    oracle: Any = None
    return Case(Inquiry(repro, Verdict(Kind.MISMATCH), oracle, asked=3), LocateDirectory(tmp_path))


def stage(case: Case, found: Located) -> dict[str, Any]:
    case.inquiry.count(queries=2)
    return {"stage": Stage.BACKEND}


def fault(case: Case, found: Located) -> dict[str, Any]:
    raise KeyError("buf0\nand a long story")


def stop(case: Case, found: Located) -> dict[str, Any]:
    raise SearchStopped("the time is up")


def part(case: Case, found: Located) -> dict[str, Any]:
    return {"part": Part("pass", "reinplace")}


def test_a_fault_of_ours_is_a_note_and_the_other_steps_go_on(case: Case) -> None:
    found = answered({"stage": stage, "op": fault, "part": part}, case, START)
    assert found.stage is Stage.BACKEND
    assert found.part is not None
    assert found.stopped == ""
    assert case.inquiry.notes == [
        "op: unknown: torchrepro itself failed (KeyError: 'buf0\\nand a long story')"
    ]


def test_a_stop_gives_what_was_found_so_far_and_says_why(case: Case) -> None:
    found = answered({"stage": stage, "op": stop, "part": part}, case, START)
    assert found.stage is Stage.BACKEND
    assert found.part is None
    assert found.stopped == "the time is up"


def test_compiles_and_notes_of_a_call_and_of_its_guilty_graph_are_counted_together(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    inquiry = case.inquiry
    inquiry.repro = replace(inquiry.repro, place=Place.BEFORE_CAPTURE)
    inquiry.notes.append("of the call")
    culprit = FoundGraph(GuiltyGraph(0, 1, "b"), inquiry.repro, inquiry.verdict)
    monkeypatch.setattr(job, "graph_in_call", lambda *_: culprit)
    found = answered({"graph": job.ANSWERS["which graph fails"]}, case, FOUND)
    assert found.graph == culprit.graph
    assert case.inquiry is not inquiry
    assert (case.inquiry.asked, case.inquiry.notes) == (3, ["of the call"])


HIDING = Part("decomposition", "aten._softmax.default", "turning it off hides the failure", verified=False)
ALONE = GuiltyOp("erf", "torch.erf", Way.WINDOW)


@pytest.mark.parametrize(
    ("found", "sure"),
    [
        (START, Confidence.UNKNOWN),
        (FOUND, Confidence.LIKELY),
        (replace(FOUND, op=replace(ALONE, way=Way.ERROR)), Confidence.LIKELY),
        (replace(FOUND, workaround=Workaround(code="x")), Confidence.LIKELY),
        (replace(FOUND, workaround=Workaround(code="x", verified=True)), Confidence.VERIFIED),
        (replace(FOUND, op=ALONE), Confidence.VERIFIED),
        (replace(FOUND, part=Part("pass", "reinplace")), Confidence.VERIFIED),
        (replace(FOUND, part=HIDING, workaround=Workaround(code="x", verified=True)), Confidence.LIKELY),
        (replace(FOUND, part=HIDING, op=ALONE), Confidence.VERIFIED),
    ],
)
def test_how_sure_it_is_depends_on_what_was_seen(found: Located, sure: Confidence) -> None:
    assert confidence_in(found) is sure


class BackendIsWrong(CountingOracle):
    """The relu is wrong in inductor alone; the number of ops of each query is kept."""

    def verdict(self, repro: Repro) -> Verdict:
        self.sizes.append(repro.ops)
        return Verdict(Kind.PASS) if repro.compiler.name != "inductor" else super().verdict(repro)

    sizes: ClassVar[list[int]] = []


@pytest.mark.parametrize("kind", [Kind.MISMATCH, Kind.CRASH])
@pytest.mark.parametrize("likely", [("relu",), ()])
def test_where_a_compile_takes_long_stage_and_op_are_found_without_one(
    kind: Kind, likely: tuple[str, ...], tmp_path: Path
) -> None:
    repro, oracle = random_graph(200, 120, seed=1), BackendIsWrong(kind)
    long = replace(oracle.verdict(repro), seconds=100.0)
    oracle.sizes.clear()
    case = Case(Inquiry(repro, long, oracle), LocateDirectory(tmp_path), likely=likely)  # type: ignore[arg-type]
    steps = {name: job.ANSWERS[name] for name in ("which op fails alone", "which stage fails first")}
    found = answered(steps, case, replace(START, kind=kind))
    assert (found.stage, found.op and (found.op.node, found.op.way)) == (Stage.BACKEND, ("relu", Way.WINDOW))
    assert [rung.backend for rung in found.rungs if rung.fails] == ["inductor"]
    assert max(oracle.sizes) < repro.ops
    assert not likely or max(oracle.sizes) == 1
