"""A process says itself whether it may be forked, and why not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from torchrepro.engine.processes.executor import devices_of
from torchrepro.engine.processes.fork_safety import why_not_fork
from torchrepro.nouns.repro import Repro


def answers(program: str) -> str:
    """What a fresh process prints: this one has the test runner's threads."""
    environ = {**os.environ, "OMP_NUM_THREADS": "4"}
    environ.pop("OPENBLAS_NUM_THREADS", None)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environ, check=True
    )
    return done.stdout.strip()


_SAY = "print('reason:', why_not_fork())"
_ASK = "from torchrepro.engine.processes.fork_safety import prepare_to_fork, why_not_fork\n"


def test_a_thread_is_a_reason() -> None:
    program = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    assert answers(_ASK + program + "print(why_not_fork())").startswith("it has 1 other thread")


def test_the_thread_of_a_driver_without_a_device_is_none() -> None:
    """CUDA's driver starts one even if there is no device to see, as soon as somebody asks for devices."""
    named = (
        "import ctypes\ndef wait():\n"
        " ctypes.CDLL(None).prctl(15, b'cuda00002c0000c'); started.set(); ever.wait()\n"
    )
    start = (
        "import os, threading\nstarted, ever = threading.Event(), threading.Event()\n"
        "threading.Thread(target=wait, daemon=True).start(); started.wait()\n"
    )
    hidden = "from torchrepro.engine.processes.fork_safety import hide_devices; hide_devices(os.environ)\n"
    seen, unseen = answers(_ASK + named + start + _SAY + "\n" + hidden + _SAY).splitlines()
    assert "1 other thread" in seen
    assert "cuda" in seen
    assert unseen.strip() == "reason:"


def test_threads_that_end_with_a_fork_are_none() -> None:
    """NumPy's OpenBLAS starts some as it is imported."""
    computing = "import numpy; x = numpy.ones((300, 300)); x @ x\n"
    assert answers(_ASK + computing + _SAY) == "reason:"


@pytest.mark.slow
def test_a_team_of_openmp_is_a_reason_and_in_a_prepared_process_there_is_none() -> None:
    computing = "x = torch.ones(500, 500); (x @ x).sum(); x.exp()\n"
    prepared = f"import torch\nprepare_to_fork()\n{computing}{_SAY}\n"
    spoilt = f"torch.set_num_threads(4)\n{computing}{_SAY}\n"
    before, after = answers(_ASK + prepared + spoilt).splitlines()
    assert before.strip() == "reason:"
    assert "3 other threads" in after


def test_other_systems_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "darwin" in why_not_fork()


def test_a_device_in_use_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrepro.engine.processes.fork_safety._threads", lambda: {os.getpid(): "python"})
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr("torchrepro.torch_api.generators.is_initialised", lambda kind: True)
    assert "cuda is in use" in why_not_fork()


def test_a_repro_names_its_devices() -> None:
    on_cpu = Repro(torch.fx.symbolic_trace(lambda x: x + torch.ones(3, device="cpu")), (torch.ones(3),))
    assert devices_of(on_cpu) == frozenset()
    moved = Repro(torch.fx.symbolic_trace(lambda x: x.to(torch.device("cuda", 0)).cpu()), (torch.ones(3),))
    assert devices_of(moved) == {"cuda"}
    made = Repro(torch.fx.symbolic_trace(lambda x: x + torch.ones_like(x, device="cuda")), (torch.ones(3),))
    assert devices_of(made) == {"cuda"}
