"""`torchrepro report` as a user meets it."""

from __future__ import annotations

import json
import sys
import webbrowser
from pathlib import Path

import pytest
from commands import answer, as_strangers, torchrepro
from report.findings import RAISED, failing_bundle, minified_beside
from typer.testing import CliRunner, Result

from torchrepro.cli.app import app


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return failing_bundle(tmp_path / "failing", RAISED)


def report(*words: object) -> Result:
    """In this process: nothing here runs a bundle."""
    return CliRunner().invoke(app, ["report", *map(str, words)])


def test_a_page_is_written_beside_the_bundle(bundle: Path) -> None:
    finished = report(bundle)
    assert finished.exit_code == 0
    page = bundle.with_name("failing.report.html")
    assert finished.stdout.strip() == str(page)
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    assert [path.name for path in bundle.parent.iterdir() if path.name.startswith(".")] == []


def test_a_run_of_minify_has_its_page_beside_the_bundle_too(bundle: Path) -> None:
    assert report(minified_beside(bundle)).stdout.strip() == str(bundle.with_name("failing.report.html"))


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.html", "<!doctype"), ("a.txt", "torch.compile (inductor) cannot"), ("a.md", "# "), ("a.json", "{")],
)
def test_the_name_of_the_file_says_its_format(name: str, start: str, bundle: Path) -> None:
    target = bundle.with_name("new") / name
    assert report(bundle, "-o", target).exit_code == 0
    assert target.read_text().lstrip().lower().startswith(start.lower())


@pytest.mark.parametrize("words", [("--format", "text"), ("--format", "github"), ("-o", "-")])
def test_texts_go_to_standard_output(words: tuple[str, ...], bundle: Path) -> None:
    finished = report(bundle, *words)
    assert finished.exit_code == 0
    assert "CppCompileError" in finished.stdout
    assert sorted(path.name for path in bundle.parent.iterdir()) == ["failing"]


def test_json_tells_where_the_report_is(bundle: Path) -> None:
    told = json.loads(report(bundle, "--json", "--format", "markdown").stdout)
    assert told["path"] == str(bundle.with_name("failing.report.md"))
    assert Path(told["path"]).exists()


def test_a_report_that_is_printed_has_no_path(bundle: Path) -> None:
    finished = report(bundle, "--json", "-o", "-")
    assert finished.exit_code == 125
    assert json.loads(finished.stdout)["next_step"]


def test_a_place_that_cannot_be_written_is_one_clear_line(bundle: Path) -> None:
    finished = report(bundle, "-o", bundle)
    assert finished.exit_code == 125
    assert "choose another file with -o FILE" in finished.stderr
    assert list(bundle.parent.glob(".*")) == []


def test_open_shows_the_page_in_the_browser(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def remember(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", remember)
    assert report(bundle, "--open").exit_code == 0
    assert opened == [bundle.with_name("failing.report.html").as_uri()]


def test_the_difference_to_another_bundle_is_shown(bundle: Path, tmp_path: Path) -> None:
    other = failing_bundle(tmp_path / "other", RAISED)
    manifest = json.loads((other / "manifest.json").read_text())
    manifest["environment"]["torch"] = "2.11.0"
    (other / "manifest.json").write_text(json.dumps(manifest))
    (other / "provenance.json").unlink()
    finished = report(bundle, "--format", "text", "--against", other)
    assert "2.11.0" in finished.stdout


@pytest.mark.slow
def test_a_wrong_path_is_answered_without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    finished = torchrepro("report", tmp_path / "nothing", PYTHONPATH=str(tmp_path))
    assert finished.returncode == 125
    assert finished.stderr.startswith("torchrepro: ")
    assert "torch was imported" not in finished.stderr


@pytest.mark.slow
def test_wrong_values_are_mapped_in_a_process_of_their_own(tmp_path: Path) -> None:
    """The backend is ours and adds one to the first element: no compiler takes its time."""
    (tmp_path / "wrong_backend.py").write_text(
        "import torch\n"
        "def wrong(graph, inputs):\n"
        "    def run(*args):\n"
        "        first, *rest = graph(*args)\n"
        "        first = first.clone()\n"
        "        first.view(-1)[0] += 100\n"
        "        return (first, *rest)\n"
        "    return run\n"
    )
    bundle = failing_bundle(tmp_path / "failing", None)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["compiler"]["name"] = "wrong_backend:wrong"
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    words = ("--json", "--format", "json", "--against", "here", "--trust", "wrong_backend")
    told = answer(torchrepro("report", as_strangers(bundle), *words, cwd=tmp_path))
    assert told["verdict"] == "mismatch"
    data = json.loads(Path(told["path"]).read_text())
    (errors,) = data["errors"]
    assert (errors["path"], errors["shape"], errors["against"]) == ("out[0]", [3, 4], "float64")
    assert [cell > 1 for cell in errors["rows"][0]] == [True, False, False, False]
    assert errors["dims"] == ["dim 0 (3)", "dim 1 (4)"]
    assert data["against"] == "this machine"
    assert not [line for line in data["differences"] if line["name"] == "python"]
    assert sys.version.startswith(data["environment"]["python"])
