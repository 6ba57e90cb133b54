"""What maintainers ask first is answered in every format; what is not known says why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from findings import MISMATCH, RAISED, failing_bundle, minified_beside

from torchrepro.engine.generated_code import compare_kernels
from torchrepro.execute.torch_comparisons import ask_torch
from torchrepro.nouns.labels import labels_of
from torchrepro.nouns.verdict import Kind
from torchrepro.report.collect import Measured, collect
from torchrepro.report.evidence import Measurements, script_in_words
from torchrepro.report.formats import Format, rendered

CODE = """
from torch import device
cpp_fused_erf_0 = async_compile.cpp_pybinding(['float*'], r'''
extern "C" void kernel(float* out) { for (long i = 0; i < 64L; i++) out[i] = erf(out[i]); }
''')
"""
ANSWERS = {"same": "fails on out[0]", "default_tolerances": "fails on out[0]: x", "precision_casts": "still"}


def test_every_format_has_the_answers(tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    minified_beside(bundle)
    measured = Measured(MISMATCH, measurements=Measurements(ANSWERS, (CODE,)))
    contents = collect(bundle, measure=lambda *_: measured, generate=lambda path: [CODE])
    for format_ in Format:
        text = rendered(contents, format_)
        assert "fails on out" in text, format_
        assert "is one of 1 kernel of the original" in text, format_
    issue = rendered(contents, Format.GITHUB)
    assert "def test_compiled_as_eager():" in issue
    assert "high priority" in issue.splitlines()[-3]


def test_without_a_run_the_reason_is_given(tmp_path: Path) -> None:
    evidence = collect(failing_bundle(tmp_path / "failing")).evidence
    assert evidence is not None
    assert evidence.same == "unknown: the report was made with --no-run"
    assert evidence.first_bad.startswith("unknown: ")
    raised = collect(failing_bundle(tmp_path / "raised", RAISED)).evidence
    assert raised is not None
    assert raised.same == "not applicable: compile_error, no values to compare"


def test_the_first_bad_version_is_what_bisect_found(tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    (tmp_path / "failing.bisected").mkdir()
    found = {
        "first_bad": {"setting": "2.13.0", "torch": "2.13.0+cpu", "commit": "cf30153c4c131c8164"},
        "last_good": {"setting": "2.12.0", "torch": "2.12.0+cpu", "commit": ""},
        "axis": "torch",
        "changes": [],
    }
    (tmp_path / "failing.bisected" / "result.json").write_text(json.dumps(found))
    evidence = collect(bundle).evidence
    assert evidence is not None
    assert evidence.first_bad == "2.13.0+cpu (cf30153c4c13), last good 2.12.0+cpu"
    assert "module: regression" in evidence.labels
    (bundle / "provenance.json").unlink()
    claimed = collect(bundle).evidence
    assert claimed is not None
    assert "nothing in it was verified" in claimed.first_bad


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            {"changes": [{"sentence": "2.15.0 fixed it; 2.14.1 fails", "after": None}]},
            "2.11.0+cpu or older; 2.15.0 fixed it",
        ),
        ({}, "2.11.0+cpu or older; it fails up to 2.15.0+cpu"),
        ({"axis": "NAME", "first_bad": {"setting": "NAME=1"}}, "unknown: torchrepro bisect BUNDLE finds it"),
    ],
)
def test_a_series_in_which_no_version_broke_it_is_no_regression(
    found: dict[str, object], words: str, tmp_path: Path
) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    (tmp_path / "failing.bisected").mkdir()
    fails = {"state": "same failure", "runs": 1, "commit": ""}
    rows = [{**fails, "torch": "2.11.0+cpu"}, {"runs": 0}, {**fails, "torch": "2.15.0+cpu"}]
    usual = {"axis": "torch", "first_bad": None, "last_good": None, "changes": [], "rows": rows}
    (tmp_path / "failing.bisected" / "result.json").write_text(json.dumps({**usual, **found}))
    evidence = collect(bundle).evidence
    assert evidence is not None
    assert words in evidence.first_bad
    assert "module: regression" not in evidence.labels


def test_kernels_are_compared_without_their_names_and_then_without_sizes() -> None:
    assert compare_kernels([CODE], [CODE]).startswith("yes: ")
    smaller = CODE.replace("64L", "2L").replace("cpp_fused_erf_0", "cpp_fused_erf_tanh_3")
    assert compare_kernels([CODE], [smaller]).startswith("yes, but for sizes: ")
    assert compare_kernels([CODE], [CODE.replace("erf(out", "tanh(out")]).startswith("no: ")
    assert compare_kernels([CODE], []).startswith("unknown: ")


@pytest.mark.parametrize(
    ("error", "same", "close"),
    [(0.0, "passes", "passes"), (1.0, "fails", "fails")],
)
def test_torchs_own_comparisons_are_asked(error: float, same: str, close: str) -> None:
    truth = torch.linspace(1, 2, 8, dtype=torch.float64)
    eager = {"out[0]": truth.float()}
    compiled = {"out[0]": truth.float() + error}
    answers = ask_torch(eager, compiled, {"out[0]": truth})
    assert answers["same"].startswith(same)
    assert answers["default_tolerances"].startswith(close)


def test_labels_follow_the_rubric() -> None:
    crash = replace(MISMATCH, kind=Kind.CRASH, comparison=None)
    found = labels_of(crash, None, compiler="inductor", devices=["cuda"], dynamic=True)
    assert found == (
        *("oncall: pt2", "module: inductor", "module: crash", "module: dynamic shapes", "high priority"),
    )
    assert "high priority" not in labels_of(RAISED, None, compiler="inductor")
    assert labels_of(replace(MISMATCH, kind=Kind.PASS), None, compiler="inductor") == ()


def test_a_script_says_its_length_and_where_its_values_are() -> None:
    assert script_in_words("import torch\n" * 3) == "3 lines, values inline"
    assert (
        script_in_words('open(HERE / "tensors.safetensors")\n')
        == "1 line, its values are in files next to it"
    )
    assert script_in_words("x = 1\n" * 120) == "120 lines, 100 or more, values inline"
