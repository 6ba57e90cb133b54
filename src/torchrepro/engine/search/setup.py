"""What every search process does first: load the bundle, give the compiler a warm start, take its scratch.

The oracle of a search process: its children answer, and a request to stop ends the wait for them.

The compilers' cache of a run: its own, but not cold.

What is in a cache can hide a failure, so a run has one of its own, and it goes with the run. An empty one
makes the first compilation take 20 s instead of 5 s (torch 2.13, two cores): inductor builds and loads a
library for each vector unit that the CPU might have. So what a warm-up leaves in a new cache is kept, and the
next run starts from a copy. The precompiled header is elsewhere: torch shares it between a user's caches.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from torchrepro.bundle.archive import new_run_id
from torchrepro.bundle.load import load_bundle, trust_own
from torchrepro.bundle.read import read_manifest
from torchrepro.engine.isolated_oracle import IsolatedOracle
from torchrepro.engine.processes.choose_executor import executor_for, why_not_forked
from torchrepro.engine.processes.fork_executor import ForkExecutor
from torchrepro.engine.processes.limits import memory_share
from torchrepro.engine.search.parent import SearchRequest
from torchrepro.engine.search.run_directory import RunDirectory
from torchrepro.engine.search.stopping import Stop, StoppableExecutor
from torchrepro.engine.timeouts import Timeout
from torchrepro.engine.warm_up import Rehearsal
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind

_UNKNOWN_SECONDS = 75.0
"""What the original is taken to need before it has been run: its limit is about four times that."""
_UNKNOWN_SECONDS_OF_A_HANG = 5.0


@contextmanager
def isolated_oracle(repro: Repro, jobs: int | None, stop: Stop) -> Iterator[IsolatedOracle]:
    """Ready to be asked; no process and no temporary file is left afterwards."""
    recorded = repro.expected
    hangs = recorded is not None and recorded.kind is Kind.HANG
    timeout = Timeout(_UNKNOWN_SECONDS_OF_A_HANG if hangs else _UNKNOWN_SECONDS)
    with closing(StoppableExecutor(executor_for(repro, jobs), stop)) as executor:
        yield IsolatedOracle(executor, timeout, memory_limit=memory_share(executor.workers))


def start_cache(cache: Path, seed: Path) -> None:
    """Give a run its cache, with what warming up left in another one."""
    cache.mkdir(exist_ok=True)
    if seed.is_dir():
        # It is there already: inductor makes it when it is imported, and an interrupted run has filled it.
        shutil.copytree(seed, cache, dirs_exist_ok=True, copy_function=_copy_if_missing)


def keep_seed(cache: Path, seed: Path) -> None:
    """Keep what a warm-up has just left in a cache, unless somebody has already."""
    if seed.exists():
        return
    partial = seed.with_name(f".{seed.name}.{new_run_id()}.partial")
    # Whoever cannot write there, or comes second, only loses time.
    with suppress(OSError):
        seed.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(cache, partial, ignore=shutil.ignore_patterns("locks"))
        partial.rename(seed)
    shutil.rmtree(partial, ignore_errors=True)


def _copy_if_missing(source: str, target: str) -> str:
    return target if Path(target).exists() else str(shutil.copy2(source, target))


_COMPILES = 2
"""The rehearsal, and the throwaway compilation itself."""


def loaded(bundle: Path, *, trusted: tuple[str, ...], own: bool) -> tuple[Repro, tuple[str, ...]]:
    """The repro in a bundle, and what it may run; with `own`, all that it names: it is the user's program.

    That may live beside the user, as it would for `python script.py`.
    """
    trusted = (*trusted, *(trust_own(read_manifest(bundle)) if own else ()))
    if trusted:
        sys.path.insert(0, os.getcwd())
    return load_bundle(bundle, trusted=trusted), trusted


@contextmanager
def warming_up(request: SearchRequest, repro: Repro, stop: Stop) -> Iterator[int]:
    """Get the compiler ready for all candidates, unless that has brought this process down before; how many
    compiles that takes.

    A rehearsal goes on beside the body; what it shows to be safe is done here when the body has ended. Only
    the first time of all it has the cache to itself, because what it leaves there is kept for others.
    """
    cache, seed = RunDirectory(Path(request.directory)).cache, Path(request.seed)
    start_cache(cache, seed)
    if not request.warm or why_not_forked(repro):
        yield 0
        return
    with closing(StoppableExecutor(ForkExecutor(1), stop)) as beside:
        rehearsal = Rehearsal(repro.compiler, beside)
        if seed.exists():
            yield _COMPILES
            rehearsal.finish()
        else:
            if not rehearsal.finish():
                keep_seed(cache, seed)
            yield _COMPILES


def use_scratch(directory: RunDirectory) -> None:
    """Put temporary files where they are found and removed, should this process be killed.

    After warming up only: inductor, once it is imported, keeps its precompiled header where temporary files
    were then.
    """
    shutil.rmtree(directory.scratch, ignore_errors=True)
    directory.scratch.mkdir()
    tempfile.tempdir = str(directory.scratch)
