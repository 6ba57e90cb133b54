"""What a process leaves behind when it dies or hangs inside a compiled call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from commands import answer, as_strangers, torchrepro
from test_pending_bundle import pending_in, update

from torchrepro import Kind
from torchrepro.bundle.read import read_manifest
from torchrepro.catch.caught import Death, Flight, HangWatch, caught_in, finish_unfinished

HERE = Path(__file__).resolve().parent
GONE = 2**22 + 1
"""No process has this number: it is beyond the largest that Linux gives."""


def in_flight(directory: Path, *, pid: int = GONE, phase: str = "run", ago: float = 0.0) -> str:
    """An unfinished bundle as a process in such a phase leaves it; returns the run's id."""
    pending = pending_in(directory)
    update(pending, (torch.zeros(3), torch.ones(3)))
    assert pending.path is not None
    record = pending.path.with_name(f".{pending.path.name}.flight")
    record.write_bytes(msgspec.json.encode(Flight(pid, phase, time.time() - ago)))
    return pending.path.name.rsplit("-", 2)[0]


@pytest.mark.parametrize(
    ("death", "kind", "signature"),
    [
        (Death(GONE, -signal.SIGSEGV), Kind.CRASH, "crash | backend | SIGSEGV"),
        (Death(GONE, -signal.SIGABRT), Kind.CRASH, "crash | backend | SIGABRT"),
        (Death(GONE, -signal.SIGKILL), Kind.OUT_OF_MEMORY, "out_of_memory | backend | SIGKILL"),
        (Death(GONE, 3), Kind.CRASH, "crash | backend | exit 3"),
        (Death(GONE + 1, 1), Kind.CRASH, "crash | backend"),
    ],
)
def test_a_death_inside_a_call_becomes_a_finished_bundle(
    death: Death, kind: Kind, signature: str, tmp_path: Path
) -> None:
    run_id = in_flight(tmp_path)
    finish_unfinished(tmp_path, run_id, death)
    (caught,) = caught_in(tmp_path, run_id)
    assert (caught.verdict, caught.signature) == (kind.value, signature)
    assert sorted(path.name for path in caught.path.iterdir()) == [
        "graph.py",
        "manifest.json",
        "provenance.json",
        "repro.py",
        "tensors.safetensors",
    ]
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("phase", "death"),
    [
        ("idle", Death(GONE, -signal.SIGSEGV)),
        ("run", Death(GONE, 0)),
        ("run", Death(GONE, 1, interrupted=True)),
    ],
)
def test_a_death_that_is_not_the_compilers_leaves_nothing(phase: str, death: Death, tmp_path: Path) -> None:
    run_id = in_flight(tmp_path, phase=phase)
    finish_unfinished(tmp_path, run_id, death)
    assert list(tmp_path.iterdir()) == []


def test_who_interrupts_a_long_call_has_met_a_hang(tmp_path: Path) -> None:
    run_id = in_flight(tmp_path, phase="compile", ago=60)
    finish_unfinished(tmp_path, run_id, Death(GONE, -signal.SIGINT, interrupted=True))
    (caught,) = caught_in(tmp_path, run_id)
    assert caught.verdict == "hang"
    assert "(compiling)" in caught.summary


def test_a_process_that_lives_keeps_its_bundle(tmp_path: Path) -> None:
    run_id = in_flight(tmp_path, pid=os.getpid())
    before = sorted(path.name for path in tmp_path.iterdir())
    finish_unfinished(tmp_path, run_id, Death(GONE, -signal.SIGSEGV))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_hang_is_marked_while_it_lasts_and_the_mark_goes_if_it_ends(tmp_path: Path) -> None:
    run_id = in_flight(tmp_path, pid=os.getpid(), phase="compile", ago=20)
    HangWatch(tmp_path, run_id, 30).look()
    assert json.loads((tmp_path / "summary.json").read_text())["bundles"][0]["verdict"] == "unfinished"
    hangs = HangWatch(tmp_path, run_id, 10)
    hangs.look()
    (caught,) = caught_in(tmp_path, run_id)
    assert caught.verdict == "hang"
    assert json.loads((tmp_path / "summary.json").read_text())["bundles"][0]["verdict"] == "hang"
    record = caught.path.with_name(f".{caught.path.name}.flight")
    record.write_bytes(msgspec.json.encode(Flight(os.getpid(), "idle", time.time())))
    hangs.look()
    assert read_manifest(caught.path).expected is None
    assert json.loads((tmp_path / "summary.json").read_text())["bundles"] == []


def test_a_bundle_being_replaced_meanwhile_is_no_reason_to_stop(tmp_path: Path) -> None:
    run_id = in_flight(tmp_path, ago=60)
    (bundle,) = tmp_path.glob("*-unfinished")
    (bundle / "manifest.json").unlink()
    HangWatch(tmp_path, run_id, 10).look()
    assert caught_in(tmp_path, run_id) == []


PROGRAM = """
import sys
sys.path.insert(0, {here!r})
import torch, faulty_backends
print("compiling", flush=True)
torch.compile(lambda x: torch.relu(x) + 1, backend=getattr(faulty_backends, sys.argv[1]))(torch.arange(4.0))
"""


def start(backend: str, tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(here=str(HERE)))
    words = ["run", "--level", "3", "--out", str(tmp_path / "out"), *options, str(program), backend]
    return subprocess.Popen(
        [sys.executable, "-m", "torchrepro", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def bundles(tmp_path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((tmp_path / "out" / "summary.json").read_text())["bundles"]
    return found


def check(bundle: str) -> dict[str, Any]:
    return answer(
        torchrepro("check", bundle, "--json", "--trust", "faulty_backends", "--time-limit", 60, cwd=HERE)
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["crashes_while_compiling", "crashes_while_running"])
def test_a_segfault_leaves_a_bundle_that_reproduces_it(backend: str, tmp_path: Path) -> None:
    process = start(backend, tmp_path)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == -signal.SIGSEGV
    (found,) = bundles(tmp_path)
    assert found["signature"] == "crash | backend | SIGSEGV"
    last = errors.strip().splitlines()[-3:]
    assert last[0].startswith("torchrepro: crash in backend: SIGSEGV")
    assert last[1] == f"  bundle  {found['path']}"
    assert last[2] == f"  minify  torchrepro minify {found['path']}"
    assert check(found["path"])["reproduces"]


@pytest.mark.slow
@pytest.mark.thorough
def test_a_hang_that_is_interrupted_leaves_a_bundle(tmp_path: Path) -> None:
    process = start("hangs_while_compiling", tmp_path, "--hang-after", "3")
    assert process.stdout is not None
    assert process.stdout.readline() == "compiling\n"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        summary = tmp_path / "out" / "summary.json"
        if summary.exists() and any(found["verdict"] == "hang" for found in bundles(tmp_path)):
            break
        time.sleep(0.2)
    assert bundles(tmp_path)[0]["verdict"] == "hang"
    time.sleep(9)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    (found,) = bundles(tmp_path)
    assert found["verdict"] == "hang"
    assert not found["path"].endswith("-unfinished")


OWN_BACKEND = """
import os, signal, torch
FACTOR = 2

def helper(graph):
    return graph.forward if FACTOR == 2 else None

def own_backend(graph, example_inputs):
    def run(*args):
        os.kill(os.getpid(), signal.SIGSEGV)
        return helper(graph)(*args)
    return run

torch.compile(lambda x: torch.relu(x) + 1, backend=own_backend)(torch.arange(4.0))
"""


@pytest.mark.slow
def test_a_backend_that_the_program_itself_defines_goes_into_the_bundle(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_BACKEND)
    finished = torchrepro("run", "--level", "3", "--out", "out", "own.py", cwd=tmp_path)
    assert finished.returncode == -signal.SIGSEGV, finished.stderr
    (found,) = bundles(tmp_path)
    own = torchrepro("check", found["path"], "--json")
    assert answer(own)["reproduces"], own.stderr
    refused = torchrepro("check", as_strangers(tmp_path / found["path"]))
    assert refused.returncode == 125
    assert "--trust source" in refused.stderr
    checked = torchrepro("check", found["path"], "--trust", "source", "--json")
    assert answer(checked)["reproduces"], checked.stderr
