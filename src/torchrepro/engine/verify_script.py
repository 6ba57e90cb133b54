"""Run a script in a fresh process and check whether it fails as the repro does."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from torchrepro.engine.processes.child import Program, end_group, popen, signal_name
from torchrepro.engine.processes.fresh_process import compiler_environment
from torchrepro.engine.processes.limits import MARK
from torchrepro.nouns.messages import normalise_message
from torchrepro.nouns.probe import PROBES
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind, Signature, Verdict
from torchrepro.script.candidates import each_script
from torchrepro.script.document import Script

SCRIPT = "repro.py"
UNVERIFIED = "repro_unverified.py"
_READ = 1 << 20
"""Bytes of output that are searched: a C++ compiler's errors for one kernel can be long."""
_TAIL = 8000
_POLL_SECONDS = 0.02
_OF_THE_RUN = (MARK, "TORCHINDUCTOR_CACHE_DIR")
"""Environment variables of one run, which torch reads when it uses them."""
_REPRODUCED = re.compile(r"^reproduced(?:: .*)?$", re.MULTILINE)
_VARIABLE = re.compile(r"^os\.environ\[(.+)\] = (.+)$", re.MULTILINE)
_COMPARED = (Kind.MISMATCH, Kind.NON_FINITE, Kind.MISSING_ERROR, *PROBES)
_RUN = """\
import importlib, json, os, runpy, sys
for module in {modules!r}:
    try:
        importlib.import_module(module)
    except Exception:  # it is of the process that searches: a kernel, say
        continue
{then}
print("ready", flush=True)
line = sys.stdin.readline()
if line:
    path, environ = json.loads(line)
    os.environ.update(environ)
    os.chdir(os.path.dirname(path))
    sys.argv, sys.path[0] = [path], os.path.dirname(path)
    runpy.run_path(path, run_name="__main__")
"""
# Simulates a fixed compiler: `torch.compile` returns the model unchanged.
_WITHOUT_COMPILER = """\
import torch
torch.compile = lambda model=None, **options: model if model is not None else (lambda model: model)
"""


@dataclass(frozen=True, slots=True)
class Verified:
    """Whether a script fails as expected, and what was seen."""

    reproduces: bool
    how: str
    """What it did, as text."""
    output_tail: str = ""


@dataclass(frozen=True, slots=True)
class Settled:
    """The path of the chosen script and all that were tried; the last of them is the chosen one."""

    path: Path
    tried: tuple[tuple[Script, Verified], ...]

    @property
    def script(self) -> Script:
        return self.tried[-1][0]

    @property
    def reproduces(self) -> bool:
        return self.tried[-1][1].reproduces


def _nothing() -> None:
    return


class FreshProcesses(AbstractContextManager["FreshProcesses"]):
    """Fresh processes for scripts. Those that were started ahead have imported torch when a script comes.

    Leaving the context ends those that wait.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._waiting: dict[bool, _Waiting] = {}

    def __exit__(self, *raised: object) -> None:
        for process in self._waiting.values():
            process.end()
        self._waiting.clear()

    def start_ahead(self, kind: Kind, modules: Iterable[str] = ()) -> None:
        """Start what a script with this failure will need, importing modules that are not here yet too."""
        for compiles in (True, False) if kind in _COMPARED else (True,):
            if compiles not in self._waiting:
                self._waiting[compiles] = _Waiting(compiles, self._environ, modules)

    def run(self, path: Path, *, compiles: bool = True) -> Program:
        """Run a script; unless it `compiles`, with a `torch.compile` that does nothing.

        A script that changes variables of the environment has to do so before torch is imported.
        """
        waiting = self._waiting.get(compiles)
        known = {} if waiting is None else waiting.environ
        variables = _variables_set_in(path.read_text(encoding="utf-8"))
        cold = any(known.get(name) != value for name, value in variables)
        process = None if cold else self._waiting.pop(compiles, None)
        process = process or _Waiting(compiles, self._environ, cold=cold)
        process.run(path)
        return process


class _Waiting(Program):
    """A process that imports torch, and waits for the path of a script."""

    def __init__(
        self, compiles: bool, environ: Mapping[str, str], more: Iterable[str] = (), *, cold: bool = False
    ) -> None:
        modules = [*_loaded(), *more] if compiles else ["torch"]
        source = _RUN.format(
            modules=[] if cold and compiles else modules, then="" if compiles else _WITHOUT_COMPILER
        )
        command = [sys.executable, "-c", source]
        output = tempfile.TemporaryFile()  # noqa: SIM115 (the program owns it)
        self.environ = {**os.environ, **environ}
        process = popen(command, output, stdin=subprocess.PIPE, env=self.environ)
        super().__init__(process, output)
        assert process.stdin is not None
        self._path = process.stdin
        self._environ = environ

    def run(self, path: Path) -> None:
        """Let it run a script, once it has imported what the script needs: a time limit starts then."""
        while not self.tail() and self.process.poll() is None:
            time.sleep(_POLL_SECONDS)
        if self.process.poll() is None:  # else its exit code and its output say why
            os.ftruncate(self._output.fileno(), 0)
            self._output.seek(0)  # where the process writes next
            # It may have been started before the run that it belongs to.
            environ = {name: os.environ[name] for name in _OF_THE_RUN if name in os.environ}
            with suppress(BrokenPipeError):
                self._path.write(json.dumps([str(path), {**environ, **self._environ}]).encode() + b"\n")
                self._path.flush()

    def let_go(self) -> None:
        with suppress(BrokenPipeError):
            self._path.close()
        super().let_go()


def _variables_set_in(source: str) -> list[tuple[str, str]]:
    """Return the variables of the environment that a script sets, with their values."""
    pairs = _VARIABLE.findall(source)
    return [(ast.literal_eval(name), ast.literal_eval(value)) for name, value in pairs]


def _loaded() -> list[str]:
    """Return the modules of torch, and of what it computes sizes with, that this process has imported."""
    return ["torch", *(name for name in sys.modules if name.startswith(("torch.", "sympy.")))]


def _ended(program: Program, deadline: float) -> tuple[int | None, str]:
    """Return the exit code of a program, None if it is killed at the deadline; and what it has printed."""
    while (exit_code := program.process.poll()) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    end_group(program.process)
    return exit_code, program.tail(_READ)


def verify_script(
    script: Script,
    expected: Signature,
    *,
    time_limit: float,
    processes: FreshProcesses | None = None,
    meanwhile: Callable[[], None] = _nothing,
) -> Verified:
    """Run a script in a fresh process; for a hang, `time_limit` is how long to wait.

    A script that compares results is run a second time in parallel, with a `torch.compile` that does nothing:
    if that run fails too, the script does not show a bug of the compiler.
    """
    processes = processes or FreshProcesses(compiler_environment())
    with tempfile.TemporaryDirectory(prefix="torchrepro-script-") as scratch, ExitStack() as stack:
        path = write_script(script, Path(scratch), SCRIPT)
        compared = expected.kind in _COMPARED and not script.remark
        programs = [
            stack.enter_context(processes.run(path, compiles=compiles))
            for compiles in ((True, False) if compared else (True,))
        ]
        deadline = time.monotonic() + time_limit
        meanwhile()
        (exit_code, output), *uncompiled = [_ended(program, deadline) for program in programs]
    reproduces, how = _read(exit_code, output, expected, time_limit)
    for code, printed in uncompiled:
        if reproduces and code != 0:
            reproduces = False
            how = f"{how}; but it fails without the compiler as well ({_last_line(printed)})"
    return Verified(reproduces, how, output[-_TAIL:])


def settle(
    repro: Repro,
    verdict: Verdict,
    directory: Path,
    *,
    time_limit: float = 120.0,
    processes: FreshProcesses | None = None,
    repeats: int = 1,
    meanwhile: Callable[[], None] = _nothing,
) -> Settled:
    """Write the first script that fails as the repro does to `directory/repro.py`.

    `meanwhile` is called once, while the first script runs.

    Each is run `repeats` times before it counts as passing: more than once where the failure is flaky.
    If none does, `repro.py` is the last script tried, the first one is next to it as
    `repro_unverified.py`, and `reproduces` is false.
    """
    expected = repro.expected or Signature.of(verdict)
    processes = processes or FreshProcesses(compiler_environment(repro.ambient.environ))
    tried: list[tuple[Script, Verified]] = []
    for script in each_script(repro, verdict):
        for _ in range(max(1, repeats)):
            verified = verify_script(
                script, expected, time_limit=time_limit, processes=processes, meanwhile=meanwhile
            )
            meanwhile = _nothing
            if verified.reproduces:
                break
        tried.append((script, verified))
        if verified.reproduces:
            break
    settled = Settled(write_script(tried[-1][0], directory, SCRIPT), tuple(tried))
    if len(tried) > 1 and not settled.reproduces:
        write_script(tried[0][0], directory, UNVERIFIED)
    return settled


def write_script(script: Script, directory: Path, name: str) -> Path:
    """Write the script and the files that it reads; existing files of these names are replaced."""
    directory.mkdir(parents=True, exist_ok=True)
    for file, content in script.side_files.items():
        with suppress(FileNotFoundError):
            (directory / file).unlink()
        if isinstance(content, bytes):
            (directory / file).write_bytes(content)
        else:
            content(directory / file)
    path = directory / name
    path.write_text(script.text, encoding="utf-8")
    return path


def _read(exit_code: int | None, output: str, expected: Signature, time_limit: float) -> tuple[bool, str]:
    """Return whether this is the expected failure, and what happened."""
    if exit_code is None:
        return expected.kind is Kind.HANG, f"no end after {time_limit:g} s"
    died = signal_name(exit_code)
    if died:
        wanted = expected.kind is Kind.CRASH and expected.exception in ("", died)
        killed = expected.kind is Kind.OUT_OF_MEMORY and died == "SIGKILL"
        return wanted or killed, f"died by {died}"
    if exit_code == 0:
        return False, "ends without an error"
    if _REPRODUCED.search(output):
        return True, "says that it reproduces the failure"
    last = _last_line(output)
    if expected.kind in PROBES and expected.exception:
        return _raises(output, expected), last
    if expected.kind in _COMPARED:
        return _asserts(output), last
    match expected.kind:
        case Kind.COMPILE_ERROR | Kind.RUN_ERROR:
            return _raises(output, expected), last
        case Kind.OUT_OF_MEMORY:
            return "memory" in output.lower(), last
        case Kind.CRASH:
            return expected.exception == f"exit {exit_code}", last
    return False, last


def _asserts(output: str) -> bool:
    """Return whether an assertion of the script fails, and not one of the compiler."""
    told = output.rpartition("Traceback (most recent")[2]
    own = re.findall(rf'File ".*{re.escape(SCRIPT)}", line \d+, in .*\n\s+(.*)', told)
    return (
        bool(own) and "assert" in own[-1] and re.search(r"^AssertionError\b", told, re.MULTILINE) is not None
    )


def _raises(output: str, expected: Signature) -> bool:
    """Return whether the last traceback has the expected exception, possibly wrapped in another."""
    told = output.rpartition("Traceback (most recent")[2]
    for found in re.finditer(rf"\b{re.escape(expected.exception)}\b(?:: ?|\s|$)", told):
        if normalise_message(told[found.end() :]) == expected.message:
            return True
    return False


def _last_line(output: str) -> str:
    """Return the line of the last exception, else the last line of the output."""
    told = output.rpartition("Traceback (most recent")[2]
    found = re.findall(r"^\w[\w.]*(?:Error|Exception|Failed|Interrupt)\b.*$", told, re.MULTILINE)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return found[-1][:300] if found else lines[-1][:300] if lines else "exits without output"
