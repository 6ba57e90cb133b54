"""Hostile bundles under every verb, asserted from outside: no command, no connection, no file elsewhere.

The command runs with a home, a working directory and a cache of its own. Where strace is installed, every
program that any of its processes starts and every address that it connects to is looked at.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hostile import CORPUS

VERBS = {
    "show": ("show", "--all", "--graph", "--source"),
    "check": ("check", "--time-limit", "120"),
    "minify": ("minify", "--time-limit", "20", "--quiet"),
    "locate": ("locate", "--time-limit", "20", "--quiet"),
    "report": ("report", "--format", "html", "--output", "-"),
}
SIX = (
    *("march_in_the_environment", "compiler_that_unpickles", "message_of_an_assertion"),
    *("cxx_in_the_environment", "best_in_a_run_directory", "cache_in_a_located_directory"),
)
_TOOLS = re.compile(
    r"python[\d.]*|g\+\+[\w.-]*|c\+\+|gcc[\w.-]*|cc1plus|cc1|as|ld[\w.]*|collect2|lto-wrapper|x86_64-linux-gnu-.*"
    r"|uname|lscpu|ldconfig[\w.]*|objdump|nvidia-smi|bwrap|sh|git|which|file|strace"
)
"""Programs that torch, inductor and the sandbox start by themselves, on any bundle."""
_STRACE = shutil.which("strace")


def _traced(log: Path) -> list[str]:
    """Return the command prefix that logs programs and connections; empty where that is not possible."""
    if _STRACE is None:
        return []
    command = [_STRACE, "-f", "-qq", "-s", "400", "-e", "trace=execve,connect", "-o", str(log)]
    tried = subprocess.run([*command, "true"], capture_output=True)
    return command if tried.returncode == 0 else []


def _run(verb: str, bundle: Path, home: Path, log: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "torchrepro", *VERBS[verb], str(bundle)]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    return subprocess.run(
        [*_traced(log), *words],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        cwd=home,
        env={**environ, "HOME": str(home), "COLUMNS": "80"},
        timeout=280,
    )


def _files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def _assert_harmless(name: str, verb: str, tmp_path: Path) -> None:
    home, scratch, canary = tmp_path / "home", tmp_path / "scratch", tmp_path / "canary"
    for directory in (home, scratch):
        directory.mkdir()
    (home / "precious").write_text("years of work")
    bundle, log = CORPUS[name](scratch / "bundle", canary), tmp_path / "log"
    finished = _run(verb, bundle, home, log)
    assert finished.returncode in (0, 1, 2, 125), finished.stderr
    assert "Traceback" not in finished.stderr
    assert "bug of torchrepro" not in finished.stderr
    assert not set(finished.stdout + finished.stderr) & set("\x1b\x07\x9b\r")
    assert not canary.exists()
    assert (home / "precious").read_text() == "years of work"
    ours = (".cache", ".triton", ".config", "bundle.minified", "bundle.located")
    assert {path for path in _files(home) if not path.startswith(ours)} == {"precious"}
    if log.exists():
        text = log.read_text(errors="replace")
        programs = re.findall(r'execve\("([^"]*)".*\) = 0$', text, re.MULTILINE)
        assert {path for path in programs if not _TOOLS.fullmatch(Path(path).name)} == set()
        assert not re.search(rf"execve\(.*{re.escape(canary.name)}.*\) = 0$", text, re.MULTILINE)
        assert not re.search(r"connect\(.*AF_INET6?.*\) = 0$", text, re.MULTILINE)


SHOWN = (
    *("escapes_in_every_text", "escapes_in_the_path", "escapes_in_the_name_of_the_compiler"),
    *("pipe_in_the_directory", "links_in_the_directory", "name_that_leaves_the_zip", "bomb_in_the_zip"),
    *("deep_manifest", "counts_beyond_reason", "ranks_that_differ", "pickles_next_to_the_manifest"),
)


@pytest.mark.parametrize("name", SHOWN)
def test_showing_runs_nothing(name: str, tmp_path: Path) -> None:
    _assert_harmless(name, "show", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["message_of_an_assertion", "march_in_the_environment"])
def test_checking_runs_no_command(name: str, tmp_path: Path) -> None:
    _assert_harmless(name, "check", tmp_path)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("verb", ["minify", "locate"])
@pytest.mark.parametrize("name", SIX)
def test_searching_runs_no_command(name: str, verb: str, tmp_path: Path) -> None:
    _assert_harmless(name, verb, tmp_path)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", [name for name in CORPUS if name not in SIX])
def test_no_verb_runs_a_command(name: str, verb: str, tmp_path: Path) -> None:
    _assert_harmless(name, verb, tmp_path)
