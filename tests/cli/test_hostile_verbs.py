"""Hostile bundles under the command line, asserted from outside (`benchmarks/hostile_bundles.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.hostile_bundles import (
    MISSING,
    VERBS,
    Result,
    attacks_for,
    read,
    run,
    strange_in,
    summary,
    traced,
)

needs_strace = pytest.mark.skipif(not traced(Path("/dev/null")), reason=MISSING)
_ATTACKS = {
    "touch {canary}": "program /",
    "python -c 'import os; os.mkdir(\"{canary}\")'": "mkdir ",
    "echo x > {canary}": "openat ",
    'python -c \'import os; os.symlink("x", "{canary}")\'': "symlink ",
    "cp /bin/true {own}/g++; {own}/g++": "program ",
    "python -c 'import socket; socket.socket().connect_ex((\"127.0.0.1\", 9))'": "socket AF_INET",
}


@needs_strace
@pytest.mark.parametrize("command", _ATTACKS)
def test_what_a_stranger_would_do_is_seen(command: str, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    line = command.format(canary=tmp_path / "canary", own=own).replace("python", sys.executable)
    subprocess.run([*traced(own / "log"), "sh", "-c", f"{line}; true"], check=True)
    assert [found for found in strange_in(own / "log", (own,)) if found.startswith(_ATTACKS[command])]


@needs_strace
def test_what_torch_and_the_sandbox_do_is_not(tmp_path: Path) -> None:
    line = f"{sys.executable} -c 'import torch'; uname; echo x > {tmp_path}/file; echo x > /no/such/place"
    subprocess.run([*traced(tmp_path / "log"), "sh", "-c", line], check=False)
    assert list(strange_in(tmp_path / "log", (tmp_path,))) == []


def test_the_summary_counts_what_ran_and_what_passed() -> None:
    results = [Result(name, "show", found, 1.0, 0, "") for name, found in (("a", ()), ("b", ("program /x",)))]
    line = "470 combinations, 2 run, 1 passed: 1 hostile bundles under 1 verbs, slowest 1 s"
    assert summary(results, 470) == line


def test_a_line_that_was_cut_off_is_run_again(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    line = json.dumps(asdict(Result("a", "show", (), 1.0, 0, "")))
    file.write_text(f"{line}\n{line[:9]}")
    assert list(read(file)) == [("a", "show")]


SHOWN = (
    *("escapes_in_every_text", "escapes_in_the_path", "escapes_in_the_name_of_the_compiler"),
    *("pipe_in_the_directory", "links_in_the_directory", "name_that_leaves_the_zip", "bomb_in_the_zip"),
    *("deep_manifest", "counts_beyond_reason", "ranks_that_differ", "pickles_next_to_the_manifest"),
)


@needs_strace
@pytest.mark.parametrize("name", SHOWN)
def test_showing_runs_nothing(name: str, tmp_path: Path) -> None:
    assert run(name, "show", tmp_path).violations == ()


@needs_strace
@pytest.mark.slow
def test_checking_runs_no_command(tmp_path: Path) -> None:
    assert run("message_of_an_assertion", "check", tmp_path).violations == ()


@needs_strace
@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(("verb", "name"), [(verb, name) for verb in VERBS for name in attacks_for(verb)])
def test_no_verb_runs_a_command(name: str, verb: str, tmp_path: Path) -> None:
    assert run(name, verb, tmp_path).violations == ()
