"""Is this machine fit for torchrepro? One finding a check, each with its remedy. Needs no torch.

What may crash or hang runs in a process of its own, under a time limit. A check is a function and a row in
the table `CHECKS`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from glob import glob
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torchrepro.bundle.provenance import config_directory
from torchrepro.engine.processes.fresh_process import cache_directory, compiler_environment, run_isolated
from torchrepro.engine.sandbox.chosen import probed
from torchrepro.nouns.environment import cxx_compiler
from torchrepro.nouns.errors import TorchReproError, in_a_line

_PYTHONS = ((3, 11), (3, 13))
_OLDEST_TORCH = (2, 11)
_QUICK, _COMPILE = 20.0, 90.0
"""Time limits. A compilation takes 3 to 5 s, and 20 s with an empty cache on two cores."""
_ROOM = 1 << 30
"""Free bytes that a bundle with its search may need."""
_CPP = """#include <cmath>
#include <cstdio>
int main() { double x = 0; %s for (int i = 0; i < 4; i++) x += std::sqrt(i * i); std::printf("%%g", x); }
"""
_PARALLEL = "\n#pragma omp parallel for reduction(+:x)\n"


class Status(StrEnum):
    """Whether something is there and works."""

    OK = "ok"
    MISSING = "missing"
    BROKEN = "broken"
    NOT_NEEDED = "not needed"
    """It is not there, and only a part of torchrepro uses it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer of one check."""

    status: Status
    detail: str = ""
    remedy: str = ""
    name: str = ""
    needed: bool = True
    """Without it this machine is not fit; otherwise only a part of torchrepro does not work."""
    seconds: float = 0.0

    @property
    def unfit(self) -> bool:
        return self.needed and self.status in (Status.MISSING, Status.BROKEN)


@dataclass
class Examination:
    """What later checks know from earlier ones."""

    torch: dict[str, Any] = field(default_factory=dict)
    """What torch says about itself; empty if it cannot be imported."""
    environ: dict[str, str] = field(default_factory=compiler_environment)


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table."""

    name: str
    doing: str
    run: Callable[[Examination], Finding]
    needed: bool = True


def examine(on_step: Callable[[str], None] = lambda step: None) -> list[Finding]:
    """Run all checks in order."""
    examination, findings = Examination(), []
    for check in CHECKS:
        on_step(check.doing)
        started = time.monotonic()
        try:
            found = check.run(examination)
        except (TorchReproError, OSError) as exc:
            found = Finding(Status.BROKEN, in_a_line(exc), getattr(exc, "next_step", ""))
        seconds = round(time.monotonic() - started, 2)
        findings.append(replace(found, name=check.name, needed=check.needed, seconds=seconds))
    return findings


_NOT_TRIED = Finding(Status.BROKEN, "not tried: torch does not work", "see torch above")


def _python(examination: Examination) -> Finding:
    here, (oldest, newest) = sys.version_info[:2], _PYTHONS
    detail = f"{'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}"
    if oldest <= here <= newest:
        return Finding(Status.OK, detail)
    return Finding(Status.BROKEN, f"{detail} is not supported", "use Python 3.11, 3.12 or 3.13")


def _torch(examination: Examination) -> Finding:
    remedy = "pip install 'torch>=2.11' into the environment of torchrepro"
    if find_spec("torch") is None:
        return Finding(Status.MISSING, "no package torch", remedy)
    found, reason = _asked("torch_here", {}, examination, _QUICK * 2)
    if found is None:
        return Finding(Status.BROKEN, f"it cannot be imported: {reason}", f"install it again: {remedy}")
    examination.torch = found
    version = found["version"]
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < _OLDEST_TORCH:
        return Finding(Status.BROKEN, f"{version} is older than 2.11", remedy)
    return Finding(Status.OK, version)


def _compiler(examination: Examination, parallel: bool = False) -> Finding:
    compiler = cxx_compiler()
    if not compiler:
        remedy = "install g++ or clang++ (apt-get install g++), or set CXX"
        return Finding(Status.MISSING, "no g++ and no clang++ on PATH", remedy)
    with tempfile.TemporaryDirectory(prefix="torchrepro-doctor-") as directory:
        source, program = Path(directory) / "main.cpp", Path(directory) / "main"
        source.write_text(_CPP % (_PARALLEL if parallel else ""))
        flags = ["-fopenmp"] if parallel else []
        remedy = (
            "install OpenMP for this compiler (g++ has it; for clang++: apt-get install libomp-dev)"
            if parallel
            else "install the compiler again, or set CXX to another one"
        )
        for command in ([compiler, *flags, str(source), "-o", str(program)], [str(program)]):
            try:
                ran = subprocess.run(
                    command, capture_output=True, text=True, errors="replace", timeout=_QUICK
                )
            except subprocess.TimeoutExpired:
                return Finding(Status.BROKEN, f"{compiler}: no end after {_QUICK:g} s", remedy)
            except OSError as exc:
                return Finding(Status.BROKEN, f"{command[0]}: {in_a_line(exc)}", remedy)
            if ran.returncode != 0:
                last = (ran.stderr.strip() or f"exit code {ran.returncode}").splitlines()[-1]
                return Finding(Status.BROKEN, f"{compiler}: {last}", remedy)
        if ran.stdout != "6":
            return Finding(Status.BROKEN, f"{compiler}: a program printed {ran.stdout!r}, not 6", remedy)
    return Finding(Status.OK, f"compiles and runs a file with {compiler}")


def _torch_compile(examination: Examination, device: str = "cpu") -> Finding:
    if not examination.torch:
        return _NOT_TRIED
    found, reason = _asked("compile_a_graph", {"device": device}, examination, _COMPILE)
    if found is None or found["fails"]:
        remedy = "see the compiler and the cache above" if device == "cpu" else "update driver and Triton"
        return Finding(Status.BROKEN, reason or found["verdict"], remedy)
    return Finding(Status.OK, "a small graph is compiled, runs, and agrees with eager")


def _fork(examination: Examination) -> Finding:
    if not examination.torch:
        return _NOT_TRIED
    unsafe, reason = _asked("fork_after_import", {}, examination, _COMPILE)
    if unsafe == "":
        return Finding(Status.OK, "candidates are forked from a warm process")
    slower = "none needed: reusable workers run the candidates, more slowly"
    return Finding(Status.BROKEN, reason or str(unsafe), slower)


def _sandbox(examination: Examination) -> Finding:
    found = probed()
    if not found.startswith("none: "):
        return Finding(Status.OK, found)
    remedy = (
        "allow unprivileged user namespaces, or install bubblewrap; without it other people's bundles run "
    )
    return Finding(Status.MISSING, found.removeprefix("none: "), f"{remedy}only with --trust")


def _directory(variable: str, place: Callable[[], Path], examination: Examination) -> Finding:
    path = place()
    remedy = f"make it writable, or set {variable} to a directory that is"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"torchrepro")
            file.flush()
        free = shutil.disk_usage(path).free
    except OSError as exc:
        if variable == "TORCHREPRO_CACHE_DIR":  # so that the compiler is examined, and not its cache
            examination.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.gettempdir()
        return Finding(Status.BROKEN, f"{path}: {in_a_line(exc)}", remedy)
    detail = f"{path}, {free / 2**30:,.1f} GiB free"
    if free < _ROOM:
        return Finding(
            Status.BROKEN, detail, f"free a gibibyte, or set {variable} to a directory on another disk"
        )
    return Finding(Status.OK, detail)


def _gpu(examination: Examination) -> Finding:
    devices = glob("/dev/nvidia[0-9]*") + glob("/dev/kfd")
    torch = examination.torch
    if torch.get("gpus"):
        if not torch["triton"]:
            return Finding(Status.MISSING, "there is no package triton", "pip install triton")
        compiled = _torch_compile(examination, "cuda")
        return replace(compiled, detail=f"{', '.join(torch['gpus'])}: {compiled.detail}")
    if not devices:
        return Finding(Status.NOT_NEEDED, "this machine has none")
    if not torch:
        return _NOT_TRIED
    if not torch.get("built_for"):
        return Finding(
            Status.MISSING,
            f"{devices[0]} is there, and this torch is for the CPU alone",
            "install torch for CUDA",
        )
    built = torch["built_for"]
    return Finding(Status.BROKEN, f"torch for CUDA {built} cannot use {devices[0]}", "update the driver")


def _program(names: tuple[str, ...], purpose: str, install: str, examination: Examination) -> Finding:
    found = {name: shutil.which(name) for name in names}
    if all(found.values()):
        return Finding(Status.OK, ", ".join(map(str, found.values())))
    absent = ", ".join(name for name, path in found.items() if path is None)
    return Finding(Status.NOT_NEEDED, f"no {absent} on PATH; only for {purpose}", install)


def _package(name: str, purpose: str, install: str, examination: Examination) -> Finding:
    try:
        return Finding(Status.OK, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Finding(Status.NOT_NEEDED, f"no package {name}; only for {purpose}", install)


def _plugin(examination: Examination) -> Finding:
    if find_spec("pytest") is None:
        return Finding(Status.NOT_NEEDED, "no package pytest", "pip install pytest")
    if metadata.entry_points(group="pytest11", name="torchrepro"):
        return Finding(Status.OK, f"registered with pytest {metadata.version('pytest')}")
    return Finding(Status.MISSING, "pytest does not know it", "install torchrepro again, or -p " + _PLUGIN)


def _asked(job: str, payload: dict[str, Any], examination: Examination, limit: float) -> tuple[Any, str]:
    """Return what a job answers in a process of its own, or None and why there is no answer."""
    outcome = run_isolated(f"{_JOBS}:{job}", payload, time_limit=limit, environ=examination.environ)
    if outcome.result is not None:
        return outcome.result, ""
    return None, f"no answer after {limit:g} s" if outcome.timed_out else outcome.death


_JOBS = "torchrepro.engine.doctor_jobs"
_PLUGIN = "torchrepro.testing.pytest_plugin"
_CACHE, _CONFIG = "TORCHREPRO_CACHE_DIR", "TORCHREPRO_CONFIG_DIR"
_PAGES = partial(
    _program, ("chromium", "chromedriver"), "tests of the report's page", "apt-get install chromium-driver"
)
_UV = partial(_program, ("uv",), "bisect, which otherwise uses venv and pip", "pip install uv")
_RAY = partial(_package, "ray", "running on a cluster", "pip install 'torchrepro[ray]'")

CHECKS = (
    Check("python", "looking at Python", _python),
    Check("torch", "importing torch", _torch),
    Check("cache", "looking at the cache directory", partial(_directory, _CACHE, cache_directory)),
    Check("config", "looking at the configuration", partial(_directory, _CONFIG, config_directory)),
    Check("C++ compiler", "compiling a C++ file", _compiler),
    Check("OpenMP", "compiling with OpenMP", partial(_compiler, parallel=True)),
    Check("torch.compile", "compiling a small graph", _torch_compile),
    Check("fork", "forking a process that compiles", _fork, needed=False),
    Check("sandbox", "starting a sandbox", _sandbox, needed=False),
    Check("GPU", "looking for a GPU", _gpu, needed=False),
    Check("pytest plugin", "looking for the pytest plugin", _plugin, needed=False),
    Check("uv", "looking for uv", _UV, needed=False),
    Check("Ray", "looking for Ray", _RAY, needed=False),
    Check("Chromium", "looking for Chromium", _PAGES, needed=False),
)
