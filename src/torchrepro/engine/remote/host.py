"""The host on a worker: a warm process that runs each candidate in a child of its own.

It is what a search process is at home, without the search: torch is imported, the compiler is warm, and a
child is forked for each candidate (on a device, workers are reused).
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.load import load_verified
from torchrepro.bundle.manifest import devices_of
from torchrepro.bundle.read import read_manifest
from torchrepro.engine.processes.child import Outcome, Reporter, describe_error
from torchrepro.engine.processes.executor import (
    Executor,
    Task,
    executor_for,
    fork_workers_ahead,
    why_not_forked,
)
from torchrepro.engine.processes.fresh_process import AT_END
from torchrepro.engine.processes.limits import memory_share, thread_share, usable_cores
from torchrepro.engine.processes.signals import die_with
from torchrepro.engine.search.setup import Rehearsal, Stop, keep_seed, start_cache
from torchrepro.nouns.repro import Repro

_WARM_UP = "torchrepro.engine.search.setup:warm_up_worker"


def run_task(request: Mapping[str, Any], reporter: Reporter) -> Any:
    """Run a candidate in a child, and return its outcome as plain data; SIGINT cancels it."""
    stop = Stop()
    stop.listen()
    bundle, scratch, seed = Path(request["bundle"]), Path(request["scratch"]), request["seed"]
    if request["parent"]:
        die_with(request["parent"], signal.SIGTERM)
        if not AT_END:
            AT_END.append(partial(_remove, scratch.parent, os.getpid()))
    reporter.phase("load")
    # Behind what this process has: a file called random.py must not replace the standard library's.
    sys.path.extend(path for path in request["path"] if path not in sys.path)
    cores = usable_cores()
    devices = devices_of(read_manifest(bundle))
    if seed and devices:
        fork_workers_ahead(devices, 1, _WARM_UP)
    try:
        repro = load_verified(bundle)
    except Exception as exc:
        return msgspec.to_builtins(Outcome(error=describe_error(exc), phase="load"))
    if seed:
        reporter.phase("warm")
        _warm_up(repro, scratch / "cache", Path(seed))
        gc.freeze()  # the collection after each job would go through all of torch
    # After the first compilation: inductor keeps its precompiled header where temporary files were before.
    tempfile.tempdir = str(scratch)
    limit = request["time_limit"]
    task = Task(request["job"], repro, request["payload"], limit, memory_share(cores))
    # As at home, where by default each core has a worker.
    with executor_for(repro, 1, stop.waiting, threads=thread_share(cores)) as executor:
        reporter.send(phase="start", time_limit=limit + request["margin"])
        executor.start(task)
        return msgspec.to_builtins(executor.wait()[1])


def _remove(directory: Path, host: int) -> None:
    """Remove the files of a host whose parent was killed, in the host itself and not in a fork of it."""
    if os.getpid() == host:
        shutil.rmtree(directory, ignore_errors=True)


def _warm_up(repro: Repro, cache: Path, seed: Path) -> None:
    """Compile something of our own, in a child first; keep what that leaves in the cache."""
    start_cache(cache, seed)
    if why_not_forked(repro):
        return
    with Executor(1) as executor:
        if not Rehearsal(repro.compiler, executor).finish():
            keep_seed(cache, seed)
