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
_TOOLS = re.compile(
    r"python[\d.]*|g\+\+[\w.-]*|c\+\+|gcc[\w.-]*|cc1plus|cc1|as|ld[\w.]*|collect2|lto-wrapper|x86_64-linux-gnu-.*"
    r"|openssl|uname|lscpu|ldconfig[\w.]*|objdump|nvidia-smi|bwrap|sh|git|which|file|strace"
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
    assert _strange_in(log) == []


def _strange_in(log: Path) -> list[str]:
    """Return the programs that only a stranger would start, and the connections."""
    text = log.read_text(errors="replace") if log.exists() else ""
    programs = re.findall(r'execve\("([^"]*)".*\) = 0$', text, re.MULTILINE)
    connections = re.findall(r"connect\(.*AF_INET6?.*$", text, re.MULTILINE)
    return [*(path for path in programs if not _TOOLS.fullmatch(Path(path).name)), *connections]


@pytest.mark.skipif(_STRACE is None, reason="needs strace")
def test_a_command_that_runs_is_seen(tmp_path: Path) -> None:
    log, canary = tmp_path / "log", tmp_path / "canary"
    traced = _traced(log)
    if not traced:
        pytest.skip("strace may not trace here")
    subprocess.run([*traced, "sh", "-c", f"touch {canary}; true"], check=True)
    assert canary.exists()
    assert [Path(path).name for path in _strange_in(log)] == ["touch"]


SHOWN = (
    *("escapes_in_every_text", "escapes_in_the_path", "escapes_in_the_name_of_the_compiler"),
    *("pipe_in_the_directory", "links_in_the_directory", "name_that_leaves_the_zip", "bomb_in_the_zip"),
    *("deep_manifest", "counts_beyond_reason", "ranks_that_differ", "pickles_next_to_the_manifest"),
)


@pytest.mark.parametrize("name", SHOWN)
def test_showing_runs_nothing(name: str, tmp_path: Path) -> None:
    _assert_harmless(name, "show", tmp_path)


@pytest.mark.slow
def test_checking_runs_no_command(tmp_path: Path) -> None:
    _assert_harmless("message_of_an_assertion", "check", tmp_path)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", CORPUS)
def test_no_verb_runs_a_command(name: str, verb: str, tmp_path: Path) -> None:
    _assert_harmless(name, verb, tmp_path)
