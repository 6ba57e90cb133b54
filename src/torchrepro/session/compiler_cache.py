"""The compilers' cache of a run: its own, but not cold.

What is in a cache can hide a failure, so a run has one of its own, and it goes with the run. An empty one
makes the first compilation take 20 s instead of 5 s (torch 2.13, two cores): inductor builds and loads a
library for each vector unit that the CPU might have. So what a warm-up leaves in a new cache is kept, and the
next run starts from a copy. The precompiled header is elsewhere: torch shares it between a user's caches.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from torchrepro.bundle.naming import new_run_id


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
