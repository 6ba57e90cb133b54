"""From a bundle and settings to what a search process answers. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from torchrepro.bundle.manifest import devices_of
from torchrepro.bundle.read import read_manifest
from torchrepro.isolate.compiler_environment import cache_directory, compiler_environment
from torchrepro.isolate.fork_safety import hide_devices
from torchrepro.isolate.leftovers import end_leftovers
from torchrepro.session.following import OnMessage, result_of_search
from torchrepro.session.request import SearchRequest
from torchrepro.session.run_directory import RunDirectory


def searched(
    job: str,
    bundle: Path,
    directory: RunDirectory,
    settings: Any,
    *,
    toolchain: str,
    lock: int,
    on_message: OnMessage,
    kept: Callable[[], str] = lambda: "",
) -> Any:
    """What the search process of a job answers, in plain data. Its directory is held by the caller."""
    end_leftovers(directory.mark)  # of a run that was killed
    manifest = read_manifest(bundle)
    request = SearchRequest(
        job=job,
        bundle=str(bundle.resolve()),
        directory=str(directory.path),
        settings=msgspec.to_builtins(settings),
        seed=str(cache_directory() / "warm" / toolchain),
        parent=os.getpid(),
        lock=lock,
    )
    environ = {
        **compiler_environment(manifest.ambient.environ),
        "TORCHINDUCTOR_CACHE_DIR": str(directory.cache),
        "OPENBLAS_NUM_THREADS": "1",  # the search process forks, and has no other thread
    }
    if not devices_of(manifest):
        hide_devices(environ)
    return result_of_search(request, environ=environ, on_message=on_message, kept=kept)
