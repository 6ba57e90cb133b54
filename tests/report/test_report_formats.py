"""What matters in each format: the order of an issue, a complete JSON, tables for a notebook."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from findings import GUILTY, MISMATCH, RAISED, failing_bundle, located_in, minified_beside

import torchrepro
from torchrepro.nouns.contracts import Contract, Violation
from torchrepro.nouns.results import Area, Confidence, Explanation, Fact, Located
from torchrepro.nouns.verdict import Kind
from torchrepro.report.collect import collect
from torchrepro.report.contents import Contents
from torchrepro.report.formats import Format, rendered
from torchrepro.report.run_files import minified_in


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    bundle = failing_bundle(tmp_path_factory.mktemp("reports") / "failing")
    minified_beside(bundle)
    located_in(bundle)
    return collect(bundle)


def test_an_issue_has_the_order_of_the_template(contents: Contents) -> None:
    issue = rendered(contents, Format.GITHUB)
    lines = issue.splitlines()
    assert lines[0] == contents.title
    headings = [line for line in lines if line.startswith("### ")]
    assert headings == ["### 🐛 Describe the bug", "### Error logs", "### Versions"]
    assert issue.index("### 🐛") < issue.index("Minified repro") < issue.index("### Error logs")
    assert "print(torch.erf(torch.ones(2)))" in issue
    assert "Ablation: `aot_eager` passes, `inductor` fails (mismatch)." in issue
    assert "First wrong op: `torch.erf` at `model.py:12 in forward: erf(x)`." in issue
    assert 'It goes away with `torch.compile(f, options={"cpp.simdlen": 1})`.' in issue
    logs = issue[issue.index("### Error logs") :]
    assert all(value in logs for value in ("out[0] at index (0, 3)", "1.5", "7.25", "1.5000001"))
    assert "module: correctness (silent)" in lines[-3]
    assert lines[-1] == f"<!-- torchrepro-bucket: {contents.bucket} -->"
    shown = re.sub(r"<details>.*?</details>", "", issue, flags=re.DOTALL)
    assert len(shown.splitlines()) < 60, "a maintainer reads it in a minute"


def test_the_logs_of_an_error_are_its_traceback(tmp_path: Path) -> None:
    long = replace(RAISED, raised=replace(RAISED.raised, traceback="frame\n" * 500 + "CppCompileError: last"))
    issue = rendered(collect(failing_bundle(tmp_path / "raising", long)), Format.GITHUB)
    logs = issue[issue.index("### Error logs") : issue.index("### Versions")]
    assert "CppCompileError: last" in logs
    assert len(logs.splitlines()) < 40


def test_a_script_that_is_not_minimal_is_folded_and_said_to_be(tmp_path: Path) -> None:
    issue = rendered(collect(failing_bundle(tmp_path / "failing")), Format.GITHUB)
    assert "not minified" in issue
    assert "<details>" in issue


def test_json_is_complete(contents: Contents) -> None:
    data = json.loads(rendered(contents, Format.JSON))
    assert {field.name for field in fields(Contents)} <= set(data)
    assert data["format"] == 1
    assert data["verdict"]["kind"] == "mismatch"
    assert data["located"]["workaround_verified"] is True
    assert data["located"]["growth"][0]["compiled"] == "inf"
    assert data["steps"][-1]["pass_name"] == "shapes"


@pytest.mark.parametrize("format_", [Format.TEXT, Format.MARKDOWN, Format.HTML])
def test_every_format_says_the_essentials(format_: Format, contents: Contents) -> None:
    shown = rendered(contents, format_)
    for word in ("7.25", "torch.erf", "lowering", "cpp.simdlen", "encoder.norm", "windows"):
        assert word in shown


def test_results_show_themselves_in_a_notebook(contents: Contents) -> None:
    assert "<td>7.25</td>" in MISMATCH._repr_html_()
    assert "<td>7.25</td>" in MISMATCH.comparison._repr_html_()  # type: ignore[union-attr]
    assert "<td>encoder.norm</td>" in GUILTY._repr_html_()
    assert "<pre>import torch" in contents._repr_html_()
    assert "CppCompileError" in RAISED._repr_html_()


def test_the_public_names_are_there_without_torch() -> None:
    program = (
        "import sys, torchrepro\n"
        "torchrepro.report_on, torchrepro.rendered, torchrepro.Contents, torchrepro.Located\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert callable(torchrepro.report_on)


def test_what_minify_found_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    run = minified_beside(failing_bundle(tmp_path / "failing"))
    minified = minified_in(run)
    assert minified is not None
    shown = minified._repr_html_()
    assert "<td>ops</td><td>4</td><td>1</td>" in shown
    assert "any value of x fails" in shown


def test_what_matters_shows_itself_in_a_notebook() -> None:
    fact = Fact(Area.SIZES, "x", "any size >= 16 fails", matters=True, failing=("16", "17"), passing=("<b>",))
    shown = Explanation(facts=(fact,), queries=3)._repr_html_()
    assert "<td>any size &gt;= 16 fails</td><td>yes</td><td>16, 17</td><td>&lt;b&gt;</td>" in shown


def test_a_report_on_a_custom_operator_is_not_addressed_to_pytorch(tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "operator")
    violation = Violation(
        "fastops::gram",
        Contract.STRIDE,
        "result",
        "its fake kernel says stride (64, 8, 1)",
        "it computes stride (64, 1, 8)",
        "its fake kernel should return torch.empty_strided((2, 8, 8), (64, 1, 8))",
        "fastops.py:11",
    )
    located = Located(
        bundle=str(bundle),
        kind=Kind.MISMATCH,
        blamed="operator fastops::gram",
        violations=(violation,),
        confidence=Confidence.VERIFIED,
    )
    located_in(bundle, located)
    contents = collect(bundle)
    issue = rendered(contents, Format.GITHUB)
    assert issue.splitlines()[0].startswith("operator fastops::gram: ")
    assert "This is no bug of PyTorch" in issue
    assert "labels" not in issue
    assert "First stage that fails" not in issue
    for format in Format:
        text = rendered(contents, format)
        for said in ("fastops::gram", "fastops.py:11", "(64, 1, 8)"):
            assert said in html.unescape(text).replace("\\", ""), (format, said)
