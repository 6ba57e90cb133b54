"""Replay a bundle with another Python and its torch: in a fresh process, with fresh compile caches.

The judge is always this torchrepro, so that two versions of torch are judged by the same rule: its package is
linked into a directory of its own on the other interpreter's path, without what else is installed here.
Caches of inductor and Triton are directories of one replay. Inductor's starts with a copy of the warm cache
of that interpreter, in which only a graph of our own was ever compiled (`engine/sandbox/chosen.py`), and the
precompiled header is shared, whose name is a digest of its text and of the compiler's flags: no result of an
earlier run of a bundle can be found in either. Needs no torch.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torchrepro.bundle.read import read_manifest
from torchrepro.engine.check_bundle import check_bundle, generate_code
from torchrepro.engine.generated_code import digest_code, join_code
from torchrepro.engine.processes.fresh_process import (
    cache_directory,
    raise_reported,
    run_isolated,
    understood,
)
from torchrepro.engine.processes.limits import MARK, owned_directory
from torchrepro.engine.processes.signals import die_with, handling, leave
from torchrepro.engine.sandbox.chosen import USES_SEED, make_seed
from torchrepro.engine.search.run_directory import seed_here
from torchrepro.nouns.errors import HarnessError, TorchReproError
from torchrepro.nouns.verdict import Kind

_OLDEST_PYTHON = (3, 11)
_SECONDS_TO_ANSWER = 180.0
_LONGEST = 24 * 3600.0
"""Seconds for a replay as a whole: the other interpreter applies the time limit of the bundle itself."""
_LARGEST_CODE = 64 << 20
_QUESTION = """
import json, sys
answer = {"version": "%d.%d.%d" % sys.version_info[:3]}
if sys.version_info >= (3, 11):
    try:
        import torch
        answer.update(torch=str(torch.__version__), commit=str(torch.version.git_version or ""))
        if sys.argv[1:]:
            import torchrepro.cli.app, torchrepro.engine.other_python, torchrepro.execute.judge_repro
        from importlib import metadata
        names = {"triton", "pytorch-triton", "triton-windows"}
        found = [each.version for each in metadata.distributions() if each.name in names]
        answer["triton"] = found[0] if found else ""
        import hashlib, os
        digest, root = hashlib.sha256(), os.path.join(os.path.dirname(torch.__file__), "include")
        parts = "ATen/core", "ATen/cpu", "ATen/native", "c10", "torch/csrc/inductor", "torch/headeronly"
        for part in parts:
            for folder, folders, names in sorted(os.walk(os.path.join(root, part))):
                for name in sorted(names):
                    path = os.path.join(folder, name)
                    digest.update(os.path.relpath(path, root).encode() + open(path, "rb").read())
        answer["headers"] = digest.hexdigest()[:24]
    except ModuleNotFoundError as error:
        answer["missing"] = (error.name or str(error)).partition(".")[0]
    except Exception as error:
        answer["broken"] = "%s: %s" % (type(error).__name__, str(error).partition("\\n")[0])
print("\\n" + json.dumps(answer))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python with a torch, and what it says of itself."""

    python: Path
    version: str
    torch: str
    commit: str
    triton: str
    headers: str = ""
    """A digest of torch's headers that generated C++ code includes: what the same code computes."""

    def __str__(self) -> str:
        triton = f", Triton {self.triton}" if self.triton else ""
        return f"torch {self.torch} (Python {self.version}{triton})"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of a bundle with an interpreter."""

    kind: Kind | None = None
    signature: str = ""
    reproduces: bool = False
    cannot_run: str = ""
    """The reason; empty if it ran."""
    seconds: float = 0.0
    code: str = ""
    """A digest of the normalised generated code; empty if there is none."""
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """How a bundle is run with another interpreter."""

    time_limit: float | None = None
    trusted: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    """Has precedence over the variables that the bundle recorded."""


_USUAL = ReplaySettings()


def ask_interpreter(python: Path, *, judge: bool = True) -> Interpreter:
    """Return what a Python says of itself; raise if torch is missing there, or what the `judge` needs."""
    found = shutil.which(python) or shutil.which(python.absolute())
    if found is None:
        raise TorchReproError(
            f"{python} is no program that can be run",
            next_step="name the python of an environment with torch",
        )
    program = Path(os.path.abspath(found))  # not resolved: the python of a venv is a link
    with own_package() as environ:
        try:
            asked = subprocess.run(
                [program, "-P", "-c", _QUESTION, *(["judge"] if judge else [])],
                env={**os.environ, **environ},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_SECONDS_TO_ANSWER,
            )
            answer = json.loads(asked.stdout.rstrip().rpartition("\n")[2])
        except (OSError, subprocess.SubprocessError, ValueError) as exc:
            raise TorchReproError(
                f"{program} is no Python that answers ({type(exc).__name__})",
                next_step="name the python of an environment with torch",
            ) from exc
    version = answer["version"]
    if tuple(map(int, version.split(".")))[:2] < _OLDEST_PYTHON:
        raise TorchReproError(
            f"{program} is Python {version}, which is too old",
            next_step="torchrepro needs Python 3.11 or newer",
        )
    if "missing" in answer:
        raise TorchReproError(
            f"{program} has no package {answer['missing']}",
            next_step=f"install it there: {shlex.quote(str(program))} -m pip install {answer['missing']}",
        )
    if "broken" in answer:
        raise TorchReproError(
            f"{program} cannot import torch or torchrepro ({answer['broken']})",
            next_step="repair that environment, or name another",
        )
    told = (answer[name] for name in ("torch", "commit", "triton", "headers"))
    return Interpreter(program, version, *told)


@contextmanager
def own_package() -> Iterator[dict[str, str]]:
    """Yield variables with which another interpreter finds this torchrepro and nothing else of here."""
    with owned_directory("torchrepro-package-") as directory:
        yield {"PYTHONPATH": _path_to_own_package(directory)}


def replay(bundle: Path, interpreter: Interpreter, how: ReplaySettings = _USUAL) -> tuple[Replayed, str]:
    """Run a bundle with an interpreter, in a fresh process with fresh compile caches.

    Return what became of it, and the normalised generated code. Whatever keeps it from running is in
    `Replayed.cannot_run`, never an exception.
    """
    try:
        answer, code = _ask("replay_here", bundle, interpreter, how)
    except (TorchReproError, HarnessError, OSError) as exc:
        return Replayed(cannot_run=str(exc).partition("\n")[0]), ""
    return understood(answer, Replayed, strict=False), code


def generate(bundle: Path, interpreter: Interpreter, how: ReplaySettings = _USUAL) -> str:
    """Return the normalised code that would be generated, and compile and run none of it.

    Empty where that is known only after a run: then `replay`, whose code is the same.
    """
    try:
        return _ask("generate_here", bundle, interpreter, how)[1]
    except (TorchReproError, HarnessError, OSError):
        return ""


def _ask(function: str, bundle: Path, interpreter: Interpreter, how: ReplaySettings) -> tuple[Any, str]:
    """Run a function below in the interpreter; return its answer, and the code that it has written."""
    with owned_directory("torchrepro-replay-") as directory, _recorded() as started:
        code = directory / "code.txt"
        warm = cache_directory() / "warm"
        warm.mkdir(parents=True, exist_ok=True)
        (directory / "warm").symlink_to(warm.absolute())
        payload = {
            **asdict(how),
            "bundle": str(bundle.absolute()),
            "code_to": str(code),
            "parent": os.getpid(),
        }
        own = {
            "PYTHONPATH": _path_to_own_package(directory),
            "TORCHREPRO_CACHE_DIR": str(directory),
            "TRITON_CACHE_DIR": f"{directory}/triton",
            MARK: directory.name,
        }
        outcome = run_isolated(
            f"{__name__}:{function}",
            payload,
            time_limit=_LONGEST,
            environ={**how.environ, **own},
            python=str(interpreter.python),
            on_start=started,
        )
        raise_reported(outcome)
        if outcome.result is None:
            raise TorchReproError(f"its process died ({outcome.death})")
        return outcome.result, code.read_text(errors="replace") if code.exists() else ""


def _path_to_own_package(directory: Path) -> str:
    """Return a PYTHONPATH with which another interpreter finds this torchrepro and nothing else of here."""
    place = directory / "package"
    place.mkdir()
    (place / "torchrepro").symlink_to(Path(__file__).resolve().parents[1])
    others = os.environ.get("PYTHONPATH", "")
    return f"{place}{os.pathsep}{others}" if others else str(place)


# In the other interpreter.


def replay_here(payload: Mapping[str, Any], phase: object) -> dict[str, Any]:
    """Judge a bundle: the job of `replay`, in a process of the other interpreter."""
    with _work_for(payload) as bundle:
        codes: list[str] = []

        def take(code: str) -> None:
            if sum(map(len, codes)) + len(code) <= _LARGEST_CODE:
                codes.append(code)

        checked = check_bundle(
            bundle,
            time_limit=payload["time_limit"],
            trusted=tuple(payload["trusted"]),
            environ=payload["environ"],
            on_code=take,
        )
    verdict, expected = checked.verdict, checked.expected
    # Killed for memory is what a busy machine does to a healthy process, unless it is the recorded failure.
    killed = verdict.kind is Kind.OUT_OF_MEMORY and not (expected and expected.kind is Kind.OUT_OF_MEMORY)
    return asdict(
        Replayed(
            verdict.kind,
            str(checked.signature),
            checked.reproduces,
            "" if verdict.testable and not killed else f"{verdict}",
            round(verdict.seconds, 3),
            _write_code(codes, payload["code_to"]),
            (*verdict.notes, *([f"run in a sandbox: {checked.sandbox}"] if checked.sandbox else [])),
        )
    )


def generate_here(payload: Mapping[str, Any], phase: object) -> bool:
    """Generate code: the job of `generate`, in a process of the other interpreter."""
    with _work_for(payload) as bundle:
        codes = generate_code(bundle, time_limit=payload["time_limit"], trusted=tuple(payload["trusted"]))
    return bool(_write_code(codes, payload["code_to"]))


@contextmanager
def _work_for(payload: Mapping[str, Any]) -> Iterator[Path]:
    """Start the compiler's cache from the warm one; end with the parent, and everything started with it."""
    bundle = Path(payload["bundle"])
    with handling({signal.SIGTERM: leave}):
        die_with(payload["parent"], signal.SIGTERM)
        if read_manifest(bundle).compiler.name in USES_SEED:
            seed = seed_here()
            if not seed.exists():
                make_seed(seed)
            if seed.is_dir():
                shutil.copytree(seed, cache_directory() / "inductor")
        yield bundle


def _write_code(codes: list[str], path: str) -> str:
    """Write the normalised code to a file, and return its digest."""
    text = join_code(codes)
    if text:
        Path(path).write_text(text, errors="replace")
    return digest_code(text)


_running: set[int] = set()
"""The processes of the replays that threads of this process wait for."""
_lock = threading.Lock()


@contextmanager
def _recorded() -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the pid of a process, which ends with the body."""
    mine: list[int] = []

    def started(pid: int) -> None:
        with _lock:
            mine.append(pid)
            _running.add(pid)

    try:
        yield started
    finally:
        with _lock:
            _running.difference_update(mine)


def end_replays() -> None:
    """End all replays that threads of this process are waiting for, with what they have started."""
    with _lock:
        for pid in _running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
