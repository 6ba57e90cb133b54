"""What a bundle says is no command for the CI service that reads the output."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from commands import torchrepro

from tests.bundle.hostile_tools import healthy
from torchrepro.cli.ci_output import WithoutCommands, stream_for_commands

COMMANDS = ["::error::x", "  ::add-mask::x", "fine\n\t::stop-commands::x", "a ##[error]x", "##vso[task.x]y"]


@pytest.mark.parametrize("text", COMMANDS)
def test_commands_are_broken(text: str) -> None:
    seen = io.StringIO()
    print(text, file=WithoutCommands(seen))  # type: ignore[arg-type]
    assert seen.getvalue().replace(": :", "::").replace("# #", "##") == f"{text}\n"
    assert seen.getvalue() != f"{text}\n"


@pytest.mark.parametrize("text", ["a::b c ::d", "std::vector", "## title", "# [x]", '{"a": "::error::x"}'])
def test_other_text_stays_as_it_is(text: str) -> None:
    seen = io.StringIO()
    print(text, file=WithoutCommands(seen))  # type: ignore[arg-type]
    assert seen.getvalue() == f"{text}\n"


def test_commands_that_are_intended_arrive() -> None:
    seen = io.StringIO()
    print("::error::x", file=stream_for_commands(WithoutCommands(seen)))  # type: ignore[arg-type]
    assert seen.getvalue() == "::error::x\n"


def test_a_bundle_commands_no_runner_by_its_name_or_its_texts(tmp_path: Path) -> None:
    bundle = healthy(tmp_path / "::error::owned")
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["notes"] = ["a\n::error::owned"]
    manifest["verdict"]["summary"] = "a\n::error::owned\n##[error]owned"
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    added = torchrepro("corpus", "add", "corpus", bundle, cwd=tmp_path)
    assert added.returncode == 0, added.stderr
    for words in (
        ("show", "--all", bundle),
        ("corpus", "show", "corpus", bundle.name),
        ("report", "--no-run", "--format", "text", "-o", "-", bundle),
    ):
        done = torchrepro(*words, cwd=tmp_path, GITHUB_ACTIONS="true")
        assert done.returncode == 0, done.stderr
        assert "owned" in done.stdout
        lines = (done.stdout + done.stderr).splitlines()
        assert not [line for line in lines if line.lstrip().startswith("::") or "##[" in line]
