"""Jobs that end in every way a judging process can (run by test_fresh_process.py in real processes)."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

from torchrepro.nouns.errors import TorchReproError


def answer(payload: Any, phase: Any) -> Any:
    phase("run")
    print("noise on standard output")
    return {"got": payload["number"] + 1}


def segfault(payload: Any, phase: Any) -> Any:
    phase(payload["phase"])
    print("last words", flush=True)
    ctypes.string_at(0)


def abort(payload: Any, phase: Any) -> Any:
    phase("compile")
    os.abort()


def killed(payload: Any, phase: Any) -> Any:
    phase("run")
    os.kill(os.getpid(), signal.SIGKILL)


def hang(payload: Any, phase: Any) -> Any:
    phase(payload["phase"])
    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(600)  # {payload['mark']}"])
    time.sleep(600)


def quits(payload: Any, phase: Any) -> Any:
    phase("compile")
    os._exit(3)


def user_error(payload: Any, phase: Any) -> Any:
    raise TorchReproError("a fact", next_step="a step")


def own_bug(payload: Any, phase: Any) -> Any:
    raise ZeroDivisionError("a bug")


def exits(payload: Any, phase: Any) -> Any:
    sys.exit(7)


def passing(payload: Any, phase: Any) -> Any:
    if payload.get("fp64", True):
        phase("reference")
        os.abort()
    phase("compare")
    return {"kind": "pass", "summary": "fine"}


def floods(payload: Any, phase: Any) -> Any:
    sys.stdout.write("x" * 5_000_000)
    return "done"


def reads_stdin(payload: Any, phase: Any) -> Any:
    return sys.stdin.read()


def closes_everything_and_goes_on(payload: Any, phase: Any) -> Any:
    phase("run")
    os.closerange(3, 256)
    time.sleep(600)
