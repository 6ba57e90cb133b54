"""`benchmarks.frontend`: what its tables say, and how it goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from benchmarks.frontend import corpus, cost, table
from benchmarks.frontend.captured import BITWISE, Captured
from benchmarks.frontend.corpus import Outcome, Row
from benchmarks.frontend.measured import Measured, append, latest, read
from benchmarks.frontend.models import MODELS, chosen

OURS = Captured(BITWISE, graphs=1, ops=10, seconds=1.0)
DYNAMO = Captured(BITWISE, graphs=2, ops=12, breaks=("why",), seconds=4.0)
ONE = Measured("BertModel", "encoder", OURS, DYNAMO)
WRONG = replace(ONE, model="T5Model", ours=Captured("result: int 1 expected, int 2 found", breaks=("here",)))


def test_there_are_enough_models_of_every_kind() -> None:
    assert len(MODELS) >= 24
    assert len({model.name for model in MODELS}) == len(MODELS)
    kinds = {model.kind for model in MODELS}
    assert {"encoder", "decoder", "encoder and decoder", "vision", "audio", "state space"} <= kinds


def test_models_are_chosen_by_name() -> None:
    assert [model.name for model in chosen(["T5Model", "BertModel"])] == ["BertModel", "T5Model"]
    assert len(chosen([])) == len(MODELS)
    with pytest.raises(SystemExit, match="NoModel"):
        chosen(["NoModel"])


def test_a_row_sets_ours_against_dynamo() -> None:
    assert table.cells(ONE) == [
        "BertModel",
        "encoder",
        "bitwise",
        "1 / 2",
        "10 / 12",
        "0 / 1",
        "no",
        "1.0 s (0.25)",
    ]
    assert table.cells(WRONG)[2].startswith("**no**: result: int 1 expected")


def test_the_summary_counts_what_is_right() -> None:
    told = table.summary([ONE, WRONG])
    assert "equal to eager 1 of 2 (1 bitwise; Dynamo 2)" in told
    assert "no more graphs than Dynamo 1 of 1" in told
    assert "0.25 of Dynamo's time" in told
    assert table.reasons([ONE, WRONG]) == ["T5Model: here"]


def test_what_is_measured_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "results" / "file.jsonl"
    append(file, ONE)
    append(file, replace(ONE, kind="again"))
    with file.open("a") as cut_off:
        cut_off.write('{"model": ')
    assert read(file) == [ONE, replace(ONE, kind="again")]
    assert latest(read(file)) == {"BertModel": replace(ONE, kind="again")}


def test_the_corpus_is_told_by_theme() -> None:
    good, bad = Outcome(True, 1, 5, 0), Outcome(False, 2, 6, 1, "result differs")
    rows = [Row("lists", "pop", good, bad), Row("lists", "sort", good, good), Row("sets", "add", bad, good)]
    assert corpus.cells(rows) == [
        ["lists", "2", "2 / 1", "2 / 1", "2 / 3", "10 / 11", "0 / 1"],
        ["sets", "1", "0 / 1", "0 / 1", "2 / 1", "6 / 5", "1 / 0"],
        ["**all**", "3", "2 / 2", "2 / 2", "4 / 4", "16 / 16", "1 / 1"],
    ]
    assert "sets.add" in corpus.summary(rows)
    assert "None is wrong" in corpus.summary(rows[:2])


def test_seconds_are_shown_in_a_unit_that_fits() -> None:
    told = cost.cells(
        [cost.Cost("a call", 1e-5, 2e-5, 4e-5, 0.5), cost.Cost("a capture", 0.1, 2.0, 4.0, 0.5)]
    )
    assert told == [
        ["a call", "10 µs", "20 µs", "40 µs", "0.50"],
        ["a capture", "100 ms", "2.0 s", "4.0 s", "0.50"],
    ]
