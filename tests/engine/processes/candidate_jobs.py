"""Jobs on a repro that end in every way a candidate can (run by real children and workers)."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Repro

PASS = {"kind": "pass", "summary": "fine"}


def passes(repro: Repro, payload: Any, phase: Any) -> Any:
    phase("compare")
    return PASS


def ops(repro: Repro, payload: Any, phase: Any) -> Any:
    return {"ops": repro.ops, "sum": float(repro.inputs[0].sum()), "payload": dict(payload)}


def prints(repro: Repro, payload: Any, phase: Any) -> Any:
    phase("run")
    print('{"result": {"kind": "crash"}}')
    os.write(1, b"\xff\xfe raw bytes\n")
    print("a complaint", file=sys.stderr)
    subprocess.run(["sh", "-c", "echo a word of a program"], check=True)
    return {**PASS, "notes": [sys.stdin.read()]}


def dies(repro: Repro, payload: Any, phase: Any) -> Any:
    """By a signal of that name, in a phase."""
    phase(payload.get("phase", "run"))
    print("last words")
    if payload["signal"] == "SIGSEGV":
        ctypes.string_at(0)
    os.kill(os.getpid(), getattr(signal, payload["signal"]))


def quits(repro: Repro, payload: Any, phase: Any) -> Any:
    phase("compile")
    os._exit(3)


def sleeps(repro: Repro, payload: Any, phase: Any) -> Any:
    phase(payload.get("phase", "run"))
    began = time.monotonic()
    time.sleep(payload["seconds"])
    return {"began": began, "ended": time.monotonic(), "name": payload.get("name", "")}


def waits_for(repro: Repro, payload: Any, phase: Any) -> Any:
    began = time.monotonic()
    while not Path(payload["path"]).exists():
        time.sleep(0.01)
    return {"began": began, "ended": time.monotonic()}


def starts_programs(repro: Repro, payload: Any, phase: Any) -> Any:
    """And one of them ignores SIGTERM."""
    phase("compile")
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on'); time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{stubborn}  # {payload['mark']}"], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    if payload.get("then") == "return":
        return PASS
    Path(payload["started"]).touch()
    return subprocess.run(
        [sys.executable, "-c", f"import time; time.sleep(600)  # {payload['mark']}"], check=True
    ).returncode


def precompiles(repro: Repro, payload: Any, phase: Any) -> Any:
    """A header, which takes g++ a second or two, to a file that appears half-way."""
    header = Path(tempfile.mkdtemp()) / "header.h"
    header.write_text("".join(f"#include <{name}>\n" for name in ("regex", "random", "future", "iostream")))
    command = ["g++", "-x", "c++-header", str(header), "-o", payload["to"]]
    return subprocess.run(command, check=True).returncode


def leaves_a_fork_that_holds_the_pipe(repro: Repro, payload: Any, phase: Any) -> Any:
    phase("run")
    if os.fork() == 0:
        time.sleep(600)
    os.abort()


def closes_its_pipe_and_goes_on(repro: Repro, payload: Any, phase: Any) -> Any:
    phase("run")
    os.closerange(3, 1024)
    time.sleep(600)


def leaves_temporary_files(repro: Repro, payload: Any, phase: Any) -> Any:
    path = tempfile.mkstemp()[1]
    program = subprocess.run(["mktemp"], check=True, capture_output=True, text=True)
    return {"paths": [path, program.stdout.strip()]}


def takes_memory(repro: Repro, payload: Any, phase: Any) -> Any:
    phase(payload["phase"])
    if payload["how"] == "torch":
        return [torch.ones(payload["bytes"], dtype=torch.uint8).numel(), PASS][1]
    return [len(bytearray(payload["bytes"])), PASS][1]


def user_error(repro: Repro, payload: Any, phase: Any) -> Any:
    raise TorchReproError("a fact", next_step="a step")


def own_bug(repro: Repro, payload: Any, phase: Any) -> Any:
    phase("run")
    raise ZeroDivisionError("a bug")


def no_data(repro: Repro, payload: Any, phase: Any) -> Any:
    return object()


def surroundings(repro: Repro, payload: Any, phase: Any) -> Any:
    return {
        "pid": os.getpid(),
        "session": os.getsid(0),
        "threads": torch.get_num_threads(),
        "handles_interrupts": signal.getsignal(signal.SIGINT) is not signal.SIG_DFL,
    }
