"""The documentation is true: its examples run and print what it shows, its options and files exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTES = sorted((ROOT / "notes").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = {page.name: found for page in PAGES if (found := BLOCK.findall(page.read_text()))}
RUNNER = """
import contextlib, io, json, runpy, sys, traceback
answers = {}
for path in sys.argv[1:]:
    sys.argv, out, error = [path], io.StringIO(), ""
    with contextlib.redirect_stdout(out):
        try:
            runpy.run_path(path, run_name="__main__")
        except BaseException:
            error = traceback.format_exc()
    answers[path] = {"out": out.getvalue(), "error": error}
print(json.dumps(answers), file=sys.__stdout__)
"""


@dataclass(frozen=True)
class Ran:
    """What an example printed, and how it failed."""

    out: str
    error: str


@dataclass(frozen=True)
class Examples:
    directory: Path
    answers: dict[str, Ran]
    stderr: str

    def of(self, page: str) -> list[Ran]:
        return [self.answers[_file(page, number)] for number in range(len(EXAMPLES[page]))]


def _file(page: str, number: int) -> str:
    """The first example of the front end shows the name of its file."""
    return "model.py" if (page, number) == ("frontend.md", 0) else f"{Path(page).stem}_{number}.py"


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Examples:
    """Every example of every page, one after the other in one process: importing torch takes longest."""
    directory = tmp_path_factory.mktemp("docs")
    (directory / "run_examples.py").write_text(RUNNER)
    names = []
    for page, blocks in EXAMPLES.items():
        for number, block in enumerate(blocks):
            names.append(_file(page, number))
            (directory / names[-1]).write_text(block)
    finished = subprocess.run(
        [sys.executable, "run_examples.py", *names],
        cwd=directory,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    answers = {name: Ran(**told) for name, told in json.loads(finished.stdout.splitlines()[-1]).items()}
    return Examples(directory, answers, finished.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in EXAMPLES if page != "README.md"])
def test_every_example_of_a_page_runs(page: str, examples: Examples) -> None:
    assert [ran.error for ran in examples.of(page) if ran.error] == []
    assert "torchrepro: could not" not in examples.stderr


@pytest.mark.slow
def test_the_script_of_the_readme_fails_as_it_says(examples: Examples) -> None:
    if not torch.__version__.startswith("2.13") or torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("the bug of the example is one of torch 2.13 with AVX512")
    (script,) = examples.of("README.md")
    assert "AssertionError" in script.error


@pytest.mark.slow
def test_the_examples_of_catching_keep_a_bundle_where_something_fails(examples: Examples) -> None:
    printed = [line for ran in examples.of("catching.md") for line in ran.out.splitlines()]
    kept, saved = printed
    assert kept == "[]"
    assert (Path(saved) / "manifest.json").exists()


@pytest.mark.slow
def test_the_example_of_a_unittest_fails_with_a_bundle(examples: Examples) -> None:
    assert examples.of("pytest.md")[1].out == "mismatch True\n"


@pytest.mark.slow
def test_the_oracle_of_minifying_tells_whether_a_bundle_fails(examples: Examples) -> None:
    minimal, ops, script = examples.of("minifying.md")[1].out.split()
    assert (minimal, ops) == ("True", "1")
    bundle = Path(script).parent
    asked = subprocess.run([sys.executable, _file("minifying.md", 0), bundle], cwd=examples.directory)
    assert asked.returncode == 0, "no element is large"


@pytest.mark.slow
def test_the_front_end_prints_what_the_page_shows(examples: Examples) -> None:
    page = (ROOT / "docs" / "frontend.md").read_text()
    shown = re.search(r"^```\n(forward became.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert shown is not None
    first, *others = examples.of("frontend.md")
    assert first.out == shown[1]
    summary, counts, bundle = "".join(ran.out for ran in others).splitlines()
    assert summary.startswith("forward became one graph")
    assert counts.startswith("1 1 ")
    assert (examples.directory / bundle.split()[-1] / "manifest.json").exists()


@pytest.mark.slow
def test_the_report_of_the_page_is_written(examples: Examples) -> None:
    (example,) = examples.of("reporting.md")
    assert "not been judged" in example.out
    assert (examples.directory / "saved.html").exists()


@pytest.mark.slow
def test_the_readme_shows_what_capture_prints() -> None:
    readme = (ROOT / "README.md").read_text()
    shown = re.search(
        r"^\$ torchrepro capture (\S+) --dynamo\n(.*?)^\.\.\.$", readme, re.MULTILINE | re.DOTALL
    )
    assert shown is not None
    finished = subprocess.run(
        [sys.executable, "-m", "torchrepro", "capture", shown[1], "--dynamo"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith(shown[2])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_have_the_options_that_it_names(page: Path) -> None:
    for line in re.findall(r"^\$ torchrepro (.*)$", page.read_text(), re.MULTILINE):
        verb, *words = re.sub(r"(\.py\b).*", r"\1", line).split()  # what follows a script belongs to it
        verb = f"{verb}-{words[0]}" if verb == "corpus" else verb
        known = (ROOT / "tests" / "goldens" / "help" / f"{verb}.txt").read_text()
        assert [word for word in words if word.startswith("--") and word not in known] == []


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=lambda page: f"{page.parent.name}/{page.name}")
def test_the_links_and_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    places = (page.parent, ROOT, ROOT / "src" / "torchrepro", ROOT / "src" / "torchrepro" / "frontend")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    # `judge/models.py` and `judge/` are files of ours; a lone name such as `repro.py` is one of a bundle.
    named = re.findall(r"`((?:[a-z_0-9]+/)+(?:[a-z_0-9]+\.(?:py|md))?)`", text)
    missing = [
        name for name in (*links, *named) if name and not any((place / name).exists() for place in places)
    ]
    assert [name for name in missing if name not in GENERATED] == []


def test_the_files_of_the_walks_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    walks = text[text.index("## Four walks") : text.index("## A repro is data")]
    rooms = re.findall(r"`([a-z_/]+)/`: ([a-z_, ]+?)(?=;| \||,? then| \()", walks)
    files = [f"{room}/{name.strip()}.py" for room, names in rooms for name in names.split(",")]
    words = [file for file in files if " " not in file]
    assert len(words) > 60, "the pattern reads the tables"
    assert [file for file in words if not (ROOT / "src" / "torchrepro" / file).exists()] == []


GENERATED = {"located/", "minimal/", "minimal/repro.py", "best/", "also_seen/", "graph/"}
"""What torchrepro writes on the user's machine."""
