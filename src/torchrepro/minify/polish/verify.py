"""Run a script in a fresh process, as a stranger would, and say whether it fails as the repro does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torchrepro.flow import compiler_environment
from torchrepro.isolate.groups import end_group
from torchrepro.isolate.outcome import signal_name
from torchrepro.minify.polish.document import Entry, Script
from torchrepro.minify.polish.scripts import each_script
from torchrepro.repro import Repro
from torchrepro.signature import Signature, normalise_message
from torchrepro.verdict import Kind, Verdict

SCRIPT = "repro.py"
UNVERIFIED = "repro_unverified.py"
_TAIL = 8000
_REPRODUCED = re.compile(r"^reproduced(?:: .*)?$", re.MULTILINE)
# What the script would do if the compiler were mended: `torch.compile` that compiles nothing.
_WITHOUT_COMPILER = """\
import runpy, sys, torch
sys.argv = sys.argv[1:]
torch.compile = lambda model=None, **options: model if model is not None else (lambda model: model)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True, slots=True)
class Verified:
    """Whether a script fails as it should, and what was seen."""

    reproduces: bool
    how: str
    """In words: what it did."""
    output_tail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Settled:
    """The script that was chosen and written, and all that were tried."""

    script: Script
    verified: Verified
    path: Path
    tried: tuple[tuple[Script, Verified], ...] = ()

    @property
    def reproduces(self) -> bool:
        return self.verified.reproduces


@dataclass(frozen=True)
class _Ended:
    exit_code: int | None
    """None: it had to be ended."""
    output: str
    seconds: float


@dataclass(eq=False)
class _Running:
    """A script in a process group of its own."""

    arguments: Sequence[str]
    directory: Path
    environ: Mapping[str, str]
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed where the process ends
        self._child = subprocess.Popen(
            self.arguments,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self.environ},
            start_new_session=True,
        )

    def end(self, deadline: float) -> _Ended:
        """How it ended, at the deadline if not before; nothing of it is left."""
        exit_code: int | None
        try:
            exit_code = self._child.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            exit_code = None
        finally:
            seconds = time.monotonic() - self.started
            end_group(self._child)
        with self._output as output:
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - _TAIL))
            return _Ended(exit_code, output.read().decode(errors="replace"), seconds)


def verify_script(
    script: Script,
    expected: Signature,
    *,
    time_limit: float,
    environ: Mapping[str, str] | None = None,
) -> Verified:
    """Run a script in a fresh process; for a hang, `time_limit` is how long it is waited for.

    A script that calls `torch.compile` is run once more beside it, with a `torch.compile` that does nothing:
    what fails then as well says nothing about the compiler.
    """
    environ = compiler_environment() if environ is None else environ
    with tempfile.TemporaryDirectory(prefix="torchrepro-script-") as scratch:
        directory = Path(scratch)
        path = write_script(script, directory, SCRIPT)
        running = [_Running([sys.executable, str(path)], directory, environ)]
        try:
            if "torch.compile(" in script.text and script.entry is not Entry.INTERNAL:
                code = [sys.executable, "-c", _WITHOUT_COMPILER, str(path)]
                running.append(_Running(code, directory, environ))
        finally:
            deadline = time.monotonic() + time_limit
            ended = [each.end(deadline) for each in running]
    reproduces, how = _read(ended[0], expected, time_limit)
    if reproduces and len(ended) > 1 and ended[1].exit_code != 0:
        reproduces = False
        how = f"{how}; but it fails without the compiler as well ({_last_line(ended[1].output)})"
    return Verified(reproduces, how, ended[0].output, ended[0].seconds)


def settle(
    repro: Repro,
    verdict: Verdict,
    directory: Path,
    *,
    time_limit: float = 120.0,
    environ: Mapping[str, str] | None = None,
    header: Sequence[str] = (),
) -> Settled:
    """Write the first script that fails as the repro does to `directory/repro.py`, each tried in turn.

    If none does, `repro.py` is the last resort, the hand-written one stands beside it as
    `repro_unverified.py`, and the answer says that nothing was reproduced.
    """
    expected = repro.expected or Signature.of(verdict)
    environ = compiler_environment(repro.ambient.environ) if environ is None else environ
    tried: list[tuple[Script, Verified]] = []
    for script in each_script(repro, verdict, header=header):
        verified = verify_script(script, expected, time_limit=time_limit, environ=environ)
        tried.append((script, verified))
        if verified.reproduces:
            path = write_script(script, directory, SCRIPT)
            return Settled(script, verified, path, tuple(tried))
    script, verified = tried[-1]
    path = write_script(script, directory, SCRIPT)
    if len(tried) > 1:
        write_script(tried[0][0], directory, UNVERIFIED)
    return Settled(script, verified, path, tuple(tried))


def write_script(script: Script, directory: Path, name: str) -> Path:
    """The script and the files beside it; what stood there under these names is replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    for beside, content in script.side_files.items():
        with suppress(FileNotFoundError):
            (directory / beside).unlink()
        if isinstance(content, bytes):
            (directory / beside).write_bytes(content)
        else:
            content(directory / beside)
    path = directory / name
    path.write_text(script.text)
    shutil.rmtree(directory / "__pycache__", ignore_errors=True)
    return path


def _read(ended: _Ended, expected: Signature, time_limit: float) -> tuple[bool, str]:
    """Whether this is the failure that is expected, and what happened."""
    if ended.exit_code is None:
        return expected.kind is Kind.HANG, f"no end after {time_limit:g} s"
    died = signal_name(ended.exit_code)
    if died:
        wanted = expected.kind is Kind.CRASH and expected.exception in ("", died)
        killed = expected.kind is Kind.OUT_OF_MEMORY and died == "SIGKILL"
        return wanted or killed, f"died by {died}"
    if ended.exit_code == 0:
        return False, "ends without an error"
    if _REPRODUCED.search(ended.output):
        return True, "says that it reproduces the failure"
    last = _last_line(ended.output)
    match expected.kind:
        case Kind.MISMATCH | Kind.NON_FINITE | Kind.MISSING_ERROR:
            return "AssertionError" in ended.output.rpartition("Traceback (most recent")[2], last
        case Kind.COMPILE_ERROR | Kind.RUN_ERROR:
            return _raises(ended.output, expected), last
        case Kind.OUT_OF_MEMORY:
            return "memory" in ended.output.lower(), last
        case Kind.CRASH:
            return expected.exception == f"exit {ended.exit_code}", last
    return False, last


def _raises(output: str, expected: Signature) -> bool:
    """Whether the last traceback tells the exception that is expected, however it is wrapped."""
    told = output.rpartition("Traceback (most recent")[2]
    for found in re.finditer(rf"\b{re.escape(expected.exception)}\b(?:: ?|\s|$)", told):
        if normalise_message(told[found.end() :]) == expected.message:
            return True
    return False


def _last_line(output: str) -> str:
    """What an exception says: the last line that is not torch's advice about itself."""
    told = output.rpartition("Traceback (most recent")[2]
    found = re.findall(r"^\w[\w.]*(?:Error|Exception|Failed|Interrupt)\b.*$", told, re.MULTILINE)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return found[-1][:300] if found else lines[-1][:300] if lines else "fails without a word"
