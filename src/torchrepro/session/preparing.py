"""What every search process does first: load the bundle, give the compiler a warm start, take its scratch."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from torchrepro.bundle.load import load_bundle, trust_own
from torchrepro.bundle.read import read_manifest
from torchrepro.isolate.choose import why_not_forked
from torchrepro.isolate.forking import ForkExecutor
from torchrepro.repro import Repro
from torchrepro.runner.warm import Rehearsal
from torchrepro.session.compiler_cache import keep_seed, start_cache
from torchrepro.session.request import SearchRequest
from torchrepro.session.run_directory import RunDirectory
from torchrepro.session.stopping import Stop, StoppableExecutor

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
