"""Start a job of two gloo ranks and read what each of them saw."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

DRIVER = Path(__file__).with_name("frontend_rank_driver.py")
DEADLINE = 90.0


def played(directory: Path, *scenes: str) -> list[dict[str, Any]]:
    """What each rank saw, scene by scene. A job that hangs is ended, and is a failure."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        init_method = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHREPRO_RANK_TIMEOUT": "20"}
    command = [sys.executable, str(DRIVER), init_method, str(directory), *scenes]
    with subprocess.Popen(command, env=environ, start_new_session=True) as driver:
        try:
            driver.wait(timeout=DEADLINE)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in (0, 1)]
