"""The environment of a process in which a compiler is judged: its caches, and what the user has set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from torchrepro.nouns.ambient import telling_environment


def compiler_environment(recorded: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a judging process.

    Inductor's caches go to a directory of our own and the caches of whole graphs are off: a hit in either can
    hide the failure. What is shared there is keyed by the source of a kernel, and the precompiled header,
    which costs ten seconds, stays warm. Of a recorded environment only switches are taken, no program to run.
    """
    chosen = {
        name: value
        for name, value in telling_environment(recorded or {}).items()
        if name not in ("CC", "CXX") and "/" not in value
    }
    return {
        **chosen,
        "TORCHINDUCTOR_CACHE_DIR": str(cache_directory() / "inductor"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        # The judge watches its own compilations itself.
        "TORCHREPRO_WATCH": "0",
    }


def cache_directory() -> Path:
    """`TORCHREPRO_CACHE_DIR`, else the user's cache directory."""
    chosen = os.environ.get("TORCHREPRO_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "torchrepro"
