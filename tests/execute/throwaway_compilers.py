"""Compilers under test that a warm-up may meet (named `throwaway_compilers:function`)."""

from __future__ import annotations

import os
import threading
import time
from typing import Any


def healthy(graph: Any, inputs: Any) -> Any:
    import fractions  # noqa: F401 (what judging needs, and the process has not imported)

    return graph


def crashes(graph: Any, inputs: Any) -> Any:
    os.abort()


def hangs(graph: Any, inputs: Any) -> Any:
    time.sleep(600)


def starts_a_thread(graph: Any, inputs: Any) -> Any:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return graph
