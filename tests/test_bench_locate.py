"""`benchmarks.locate`: what it makes of an answer, which rows are right, and how it goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.locate.known import known_stage
from benchmarks.locate.measured import Measured, append, latest, measured, read
from benchmarks.locate.table import Row, markdown, rows, summary
from benchmarks.minify.cases import all_cases, chosen
from benchmarks.processes import Ended
from torchrepro.nouns.results import GuiltyOp, Located, Part, Way, Workaround
from torchrepro.nouns.verdict import Kind, Stage

(CASE,) = chosen(["191499"])
(TRAP,) = chosen(["174078"])
FOUND = Located(
    bundle="b",
    kind=Kind.MISMATCH,
    stage=Stage.BACKEND,
    part=Part("vectorisation", "cpp.simdlen"),
    op=GuiltyOp("amin", "aten.amin.default", Way.WINDOW),
    workaround=Workaround(code="torch.compile(model, options={'a': 1})", verified=True),
    compiles=15,
    seconds=30.0,
)
ROW = Measured(
    "191499",
    "backend",
    "vectorisation cpp.simdlen",
    "aten.amin.default",
    "window",
    "torch.compile(model, options={'a': 1})",
    verified=True,
    confidence="unknown",
    compiles=15,
    seconds=30.0,
)


def ended(code: int, errors: str = "") -> Ended:
    return Ended(code, 1.0, "", errors, in_time=True)


def test_an_answer_becomes_a_row() -> None:
    assert measured("191499", FOUND.to_dict(), ended(0)) == ROW


@pytest.mark.parametrize(
    ("answer", "code", "stage"),
    [
        (Located(bundle="b", kind=Kind.PASS).to_dict(), 1, "nobody"),
        (Located(bundle="b", kind=Kind.MISMATCH).to_dict(), 1, ""),
        ({"error": "b does not exist", "next_step": ""}, 125, ""),
        ({}, -9, ""),
    ],
)
def test_nobody_is_an_answer_and_no_answer_is_none(answer: dict[str, Any], code: int, stage: str) -> None:
    assert measured("x", answer, ended(code, "the last line")).stage == stage


def test_right_is_who_is_known_to_be_guilty() -> None:
    assert Row(CASE, "backend", ROW).right
    assert not Row(CASE, "aot", ROW).right
    assert Row(TRAP, "nobody", replace(ROW, stage="nobody")).right
    assert not Row(TRAP, "nobody", ROW).right
    elsewhere = Row(CASE, "backend", Measured("191499", "nobody"))
    assert not elsewhere.fails_here
    assert "does not fail on this machine: 191499" in summary([elsewhere])


def test_the_table_is_markdown_and_says_how_many_are_right() -> None:
    trap = Measured("174078", "nobody")
    text = markdown(rows([CASE, TRAP], {"191499": replace(ROW, stage="aot"), "174078": trap}))
    lines = text.splitlines()
    assert {line.count("|") for line in lines[:4]} == {lines[0].count("|")}
    assert lines[2].endswith("| 15 | 30 | **no** |")
    assert lines[-1] == "Right: stage 1 of 2; a verified workaround 1 of 1; an op 1 of 1."


def test_who_is_guilty_is_known_of_every_case() -> None:
    stages = {case.name: known_stage(case) for case in all_cases()}
    assert {name for name, stage in stages.items() if stage == "nobody"} == {
        case.name for case in all_cases() if not case.fails
    }
    assert set(stages.values()) == {"capture", "aot", "decomposition", "backend", "nobody"}


def test_what_was_measured_is_kept_line_by_line_and_the_last_one_counts(tmp_path: Path) -> None:
    file = tmp_path / "new" / "results.jsonl"
    for one in (ROW, replace(ROW, seconds=5.0)):
        append(file, one)
    with file.open("a") as text:
        text.write('{"case": "19')  # killed while writing
    assert latest(read(file)) == {"191499": replace(ROW, seconds=5.0)}
