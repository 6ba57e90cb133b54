"""Set up a search process: load the bundle, warm up the compiler, choose the directory for scratch files.

Each run has its own compiler cache, because a cache hit can hide a failure, and the cache is removed after
the run. An empty one makes the first compilation take 20 s instead of 5 s (torch 2.13, two cores): inductor
builds and loads a library for each vector unit that the CPU might have. So what a warm-up leaves in a new
cache is kept, and the next run starts from a copy. The precompiled header is elsewhere: torch shares it
between a user's caches.

Candidates that are forked from a warm process judge in tenths of a second: a first compilation imports and
registers for 2 to 5 s of processor time before the compiler proper begins (measured on torch 2.13 with a
kernel in the cache: 2.4 s in a child that inherits imports only, 0.4 s in one that inherits a compilation).
The throwaway compilation may itself hit the bug under test, and be slow or never terminate. So a child
rehearses it, and only what succeeded there is done here. Compiled code is never run here.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.load import load_verified
from torchrepro.bundle.manifest import devices_of
from torchrepro.bundle.read import read_manifest
from torchrepro.engine.oracle import JUDGE, IsolatedOracle, Timeout
from torchrepro.engine.processes.child import Reporter
from torchrepro.engine.processes.executor import (
    Executor,
    Task,
    executor_for,
    fork_workers_ahead,
    why_not_forked,
)
from torchrepro.engine.processes.fork_safety import prepare_to_fork, why_not_fork
from torchrepro.engine.processes.limits import limit_threads, memory_share
from torchrepro.engine.processes.signals import leave
from torchrepro.engine.remote.messages import Channel
from torchrepro.engine.remote.remote_executor import RemoteExecutor
from torchrepro.engine.search.process import BY_USER, TIME_IS_UP, SearchRequest
from torchrepro.engine.search.run_directory import RunDirectory
from torchrepro.engine.verify_script import FreshProcesses
from torchrepro.execute.judge_repro import judge_repro, repro_common
from torchrepro.judge.models import Phase
from torchrepro.nouns.errors import SearchStopped, TorchReproError
from torchrepro.nouns.repro import AOT_INDUCTOR, Compiler, Repro
from torchrepro.nouns.results import Moment
from torchrepro.nouns.verdict import Kind
from torchrepro.torch_api.generators import capture_rng_state, same_randomness
from torchrepro.torch_api.inductor import hash_compilers
from torchrepro.torch_api.names import COMPILE_FX, DEVICE_COMPILER, DYNAMO


class Timeline:
    """When the phases of a search began, workers were ready and candidates were sent."""

    def __init__(self, reporter: Reporter, asked: float) -> None:
        self.moments: list[Moment] = []
        self._reporter = reporter
        self._asked = asked or time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the search was asked for."""
        return time.monotonic() - self._asked

    def phase(self, name: str) -> None:
        """Report a phase that begins."""
        self.mark(name)
        self._reporter.phase(name)

    def mark(self, name: str, queries: int = 0) -> None:
        self.moments.append(Moment(name, round(self.seconds, 3), queries))

    def mark_first(self, name: str) -> None:
        """Record the first time only."""
        if not any(moment.name == name for moment in self.moments):
            self.mark(name)


SCRIPT_PROCESSES = FreshProcesses({})
"""For the scripts of this process: candidates run in its environment."""


class Stop:
    """Whether the search has to stop, and why."""

    def __init__(self) -> None:
        self.reason = ""
        self._is_waiting = False
        self._is_late = False

    def listen(self) -> None:
        """Handle SIGINT as a request to stop from now on; SIGTERM exits."""
        signal.signal(signal.SIGINT, self._request)
        signal.signal(signal.SIGTERM, leave)

    def after(self, seconds: float | None) -> None:
        """Request a stop after this many seconds too; None: never."""
        if seconds is not None:
            signal.signal(signal.SIGALRM, self._ring)
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def ignore_interrupts(self) -> None:
        """Ignore Ctrl-C while the result is written; at a second one the parent kills this process."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.reason = ""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Raise `SearchStopped` in the body as soon as a stop is requested."""
        self._is_waiting = True
        try:
            if self.reason:
                raise SearchStopped(self.reason)
            yield
        finally:
            self._is_waiting = False

    def sleep(self, seconds: float) -> None:
        with self.waiting():
            time.sleep(seconds)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        # By SIGINT, because `undisturbed` blocks that one.
        self._is_late = True
        os.kill(os.getpid(), signal.SIGINT)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.reason = self.reason or (TIME_IS_UP if self._is_late else BY_USER)
        if self._is_waiting:
            self._is_waiting = False
            raise SearchStopped(self.reason)


_UNKNOWN_SECONDS = 75.0
"""Assumed seconds of the baseline before it has been run: its timeout is about four times that."""
_UNKNOWN_SECONDS_OF_A_HANG = 5.0


@contextmanager
def isolated_oracle(
    repro: Repro,
    jobs: int | None,
    stop: Stop,
    timeline: Timeline,
    *,
    rehearse: bool,
    channel: Channel | None = None,
) -> Iterator[IsolatedOracle]:
    """Yield an oracle for the body; afterwards no process and no temporary file is left.

    With `rehearse`, forks of this process may not work: a first candidate that does not answer proves it.
    With a `channel`, candidates run where it leads to.
    """
    recorded = repro.expected
    hangs = recorded is not None and recorded.kind is Kind.HANG
    timeout = Timeout(_UNKNOWN_SECONDS_OF_A_HANG if hangs else _UNKNOWN_SECONDS)
    prove = require_forks if rehearse else None
    with executor_for(repro, jobs, stop.waiting, timeline.mark_first, prove) as executor:
        memory_limit = memory_share(executor.workers)
        if channel is None:
            yield IsolatedOracle(executor, timeout, memory_limit)
        else:
            with RemoteExecutor(
                channel, executor, waiting=stop.waiting, on_event=timeline.mark_first
            ) as remote:
                yield IsolatedOracle(remote, timeout, memory_limit)


def start_cache(cache: Path, seed: Path) -> None:
    """Create the cache of a run, with a copy of what an earlier warm-up left."""
    cache.mkdir(exist_ok=True)
    if seed.is_dir():
        # The cache may exist: inductor creates it on import, and an interrupted run has filled it.
        shutil.copytree(
            seed,
            cache,
            dirs_exist_ok=True,
            copy_function=lambda source, target: Path(target).exists() or shutil.copy2(source, target),
        )


def keep_seed(cache: Path, seed: Path) -> None:
    """Keep what a warm-up has just left in a cache, unless another process has done so."""
    if seed.exists():
        return
    partial = seed.with_name(f".{seed.name}.{new_run_id()}.partial")
    # If this fails, the next run only loses time.
    with suppress(OSError):
        seed.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(cache, partial, ignore=shutil.ignore_patterns("locks"))
        partial.rename(seed)
    shutil.rmtree(partial, ignore_errors=True)


def fill_seed(payload: Mapping[str, Any], phase: Phase) -> bool:
    """Compile a throwaway graph in the cache of this process, and keep the cache as the seed."""
    judge_repro(throwaway(Compiler("inductor")), phase=phase)
    keep_seed(Path(payload["cache"]), Path(payload["seed"]))
    return True


_REHEARSAL = 120.0
_REHEARSAL_HERE = 30.0


class Rehearsal:
    """A throwaway compilation in a child, in parallel with this process.

    The executor must not be used otherwise until it is finished.
    """

    def __init__(self, compiler: Compiler, executor: Executor, *, time_limit: float = _REHEARSAL) -> None:
        self._compiler = compiler
        self._executor = executor
        self._repro = throwaway(compiler)
        # Imported before the fork, so that the child need not import it again.
        importlib.import_module(DYNAMO)
        if self._repro.compiler.name == "inductor":
            importlib.import_module(COMPILE_FX)
        executor.start(Task("torchrepro.engine.search.setup:rehearse", self._repro, time_limit=time_limit))

    def finish(self) -> str:
        """Repeat here what succeeded in the child. Return why it could not be repeated, or empty."""
        _, outcome = self._executor.wait()
        if outcome.result is None:
            return (
                f"a throwaway compilation failed ({'did not finish' if outcome.timed_out else outcome.death})"
            )
        if outcome.result["unsafe"]:
            return f"after a compilation this process could not be forked: {outcome.result['unsafe']}"
        for name in outcome.result["imported"]:
            _import_if_package_is_here(name)
        if ":" in self._compiler.name:
            return "the compiler is a function of the user, which runs in children alone"
        try:
            with same_randomness(capture_rng_state()):
                repro_common(self._repro).compile()
        except Exception as exc:  # the compiler under test may be flaky
            return f"a throwaway compilation failed ({type(exc).__name__})"
        return ""


def require_forks() -> None:
    """Raise if a child that compiles does not answer: some state of a library does not survive a fork.

    Any answer proves that forks work, an error of the compiler too.
    """
    limit = _REHEARSAL_HERE
    task = Task(JUDGE, throwaway(Compiler("inductor")), {"time_limit": limit}, time_limit=limit)
    with Executor(1) as executor:
        executor.start(task)
        _, outcome = executor.wait()
    if outcome.result is None:
        death = f"did not answer within {_REHEARSAL_HERE:g} s" if outcome.timed_out else outcome.death
        raise TorchReproError(
            f"forks of this process do not work: one that compiles {death}",
            next_step="search in a fresh process",
        )


def rehearse(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Judge in a child; return the modules that were imported and why forking became unsafe."""
    before = set(sys.modules)
    prepare_to_fork()
    unsafe: list[str] = []

    def compiled(name: str) -> None:
        phase(name)
        if name == "run" and not unsafe:
            unsafe.append(why_not_fork())

    judge_repro(repro, phase=compiled)
    return {"unsafe": "".join(unsafe), "imported": sorted(set(sys.modules) - before)}


def throwaway(compiler: Compiler, device: str = "cpu") -> Repro:
    """Return a small repro that exercises most of a compiler: pointwise ops and a reduction.

    With the compiler's defaults: a mode could mean minutes of autotuning. AOTInductor is warmed up by
    inductor.
    """

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.softmax(x * y, -1) + 1,)

    inputs = (torch.ones(4, 20, device=device), torch.ones(4, 20, device=device))
    name = "inductor" if compiler.name == AOT_INDUCTOR else compiler.name
    return Repro(torch.fx.symbolic_trace(function), inputs, compiler=Compiler(name))


def _import_if_package_is_here(name: str) -> None:
    """Import a module that a child imported, if its package is loaded here; kernels have no package."""
    if name.partition(".")[0] not in sys.modules:
        return
    try:
        importlib.import_module(name)
    except ImportError:
        return  # generated in the child: a kernel's wrapper, named like a package of torch


_COMPILES = 2
"""The rehearsal, and the throwaway compilation itself."""


def loaded(bundle: Path, timeline: Timeline, *, trusted: tuple[str, ...], jobs: int | None) -> Repro:
    """Return the repro in a bundle, which the parent has verified; fork workers first if it is on a device.

    With trusted names, the working directory is importable, as it is for `python script.py`.
    """
    devices = devices_of(read_manifest(bundle))
    if devices:
        reason = fork_workers_ahead(devices, jobs, f"{__name__}:warm_up_worker")
        timeline.mark(f"workers are not forked: {reason}" if reason else "workers forked")
    if trusted:
        sys.path.insert(0, os.getcwd())
    return load_verified(bundle, trusted=trusted)


def stand_by(payload: Mapping[str, Any], phase: Phase) -> None:
    """Import what a search on a device needs, before there is a failure to search for.

    The processes that run scripts import torch meanwhile.
    """
    of_torch = (DYNAMO, COMPILE_FX)
    SCRIPT_PROCESSES.start_ahead(Kind.MISMATCH, (*of_torch, *DEVICE_COMPILER))
    for name in (*payload["modules"], *of_torch):
        importlib.import_module(name)
    for name in DEVICE_COMPILER:
        with suppress(ImportError):  # Triton, or a module of another release of torch
            importlib.import_module(name)
    hash_compilers()


def warm_up_worker(payload: Mapping[str, Any], phase: Phase) -> None:
    """Make a context on each device and compile there. An error of the compiler is left to the candidates."""
    limit_threads(payload["threads"])
    for device in payload["devices"]:
        torch.ones(1, device=device)
        with suppress(Exception):
            judge_repro(throwaway(Compiler("inductor"), device))


@contextmanager
def warming_up(request: SearchRequest, repro: Repro, stop: Stop) -> Iterator[int]:
    """Warm up the compiler, unless that has killed this process before; yield how many compiles it takes.

    A rehearsal runs in parallel with the body; what it shows to be safe is done here after the body.
    The first one runs before the body, because what it leaves in the cache is kept for other runs.
    """
    cache, seed = RunDirectory(Path(request.directory)).cache, Path(request.seed)
    start_cache(cache, seed)
    if request.rehearse or not request.warm or why_not_forked(repro):
        yield 0
        return
    with Executor(1, waiting=stop.waiting) as executor:
        rehearsal = Rehearsal(repro.compiler, executor)
        if seed.exists():
            yield _COMPILES
            rehearsal.finish()
        else:
            if not rehearsal.finish():
                keep_seed(cache, seed)
            yield _COMPILES


def use_scratch(directory: RunDirectory) -> None:
    """Put temporary files where they are found and removed if this process is killed.

    Only after warming up: inductor keeps its precompiled header where temporary files were at its import.
    """
    shutil.rmtree(directory.scratch, ignore_errors=True)
    directory.scratch.mkdir()
    tempfile.tempdir = str(directory.scratch)
