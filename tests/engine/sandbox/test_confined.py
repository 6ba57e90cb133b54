"""A confined job reaches nothing of the user's, ends within its limits, and still does its work."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchrepro.bundle.provenance import Standing
from torchrepro.bundle.read import read_manifest
from torchrepro.engine.processes.child import Outcome
from torchrepro.engine.processes.fresh_process import run_isolated, verdict_of
from torchrepro.engine.sandbox.chosen import CHOICE, MORE_NAMES, Sandbox, sandbox_for
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.verdict import Kind
from torchrepro.report import collect

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is made of parts of Linux")
HERE = Path(__file__).resolve().parent
BUNDLE = HERE.parents[1] / "goldens" / "bundles" / "191499.zip"
KINDS = [
    "namespaces",
    "landlock",
    pytest.param(
        "bubblewrap",
        marks=pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    ),
]
_REFUSED = ("EACCES", "EPERM", "EROFS", "ENOENT", "ESRCH", "EXDEV", "ENOSYS", "ENOTDIR")


@pytest.fixture(params=KINDS)
def sandbox(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    monkeypatch.setenv(CHOICE, request.param)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    bundle = shutil.copy(BUNDLE, tmp_path)
    manifest = read_manifest(bundle)
    seed = tmp_path / "seed"
    seed.mkdir()
    with sandbox_for(Path(bundle), manifest, Standing(False, ()), seed=seed, time_limit=60.0) as found:
        yield found


def _run(sandbox: Sandbox, job: str, **payload: Any) -> Outcome:
    return run_isolated(f"attacks:{job}", payload, time_limit=60.0, sandbox=sandbox)


@pytest.mark.slow
def test_nothing_outside_is_written_read_connected_to_or_signalled(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary, secret = tmp_path / "canary", tmp_path / "home" / ".ssh" / "id"
    secret.parent.mkdir(parents=True)
    canary.write_text("as it was")
    secret.write_text("a secret")
    key = Path(os.environ["TORCHREPRO_CONFIG_DIR"]) / "key"
    shared = Path("/dev/shm") / f"torchrepro-test-{os.getpid()}"
    before, mode = canary.stat().st_mtime_ns, canary.stat().st_mode
    with ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix, abstract = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2))
        unix.bind(str(tmp_path / "socket"))
        abstract.bind(f"\0torchrepro-test-{os.getpid()}")
        for listener in (unix, abstract):
            listener.listen()
        victim = stack.enter_context(subprocess.Popen(["sleep", "60"]))
        stack.callback(victim.kill)
        stack.callback(shared.unlink)
        shared.write_text("a secret")
        outcome = _run(
            sandbox,
            "try_all",
            canary=str(canary),
            secret=str(secret),
            key=str(key),
            shared=str(shared),
            victim=victim.pid,
            tcp=tcp.getsockname(),
            unix=str(tmp_path / "socket"),
            abstract=f"torchrepro-test-{os.getpid()}",
        )
        for listener in (tcp, unix, abstract):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()
        assert victim.poll() is None
    assert outcome.error is None, outcome.error
    assert {name: told for name, told in outcome.result.items() if told not in _REFUSED} == {}
    assert canary.read_text() == "as it was"
    assert (canary.stat().st_mtime_ns, canary.stat().st_mode) == (before, mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["191499.zip", "canary", "home", "seed", "socket"]
    )


@pytest.mark.slow
def test_the_environment_is_rebuilt_and_the_scratch_directory_works(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("PASSED_ON", "1")
    monkeypatch.setenv(MORE_NAMES, "PASSED_ON")
    found = _run(sandbox, "look_around").result
    environ = found["environ"]
    assert not {"AWS_SECRET_ACCESS_KEY", "SSH_AUTH_SOCK"} & environ.keys()
    assert environ["PASSED_ON"] == "1"
    for name in (
        "HOME",
        "TMPDIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "TORCHREPRO_CACHE_DIR",
        "TORCHREPRO_CONFIG_DIR",
    ):
        assert Path(environ[name]).is_relative_to(sandbox.scratch)
    assert found["said"] == environ["HOME"]
    assert found["wrote"] == "kept"
    if os.environ[CHOICE] != "landlock":
        assert os.getpid() not in found["processes"]
        assert len(found["processes"]) < 10
    if os.environ[CHOICE] == "namespaces" and _kernel() >= (6, 14):
        assert found["most processes"] == sandbox.limits.processes + 300
    # Besides pipes, its output, which has no name, and nothing that the parent has open.
    files = {name for name in found["descriptors"] if name.startswith("/") and name != os.devnull}
    assert all(name.endswith(" (deleted)") for name in files), files


@pytest.mark.slow
def test_a_limit_is_reported_as_one(sandbox: Sandbox) -> None:
    few = replace(sandbox, limits=replace(sandbox.limits, processes=40))
    outcome = _run(few, "fork_on")
    assert outcome.error is not None
    assert "40 processes" in outcome.error["fact"] or "Resource temporarily" in outcome.error["fact"]

    small = replace(sandbox, limits=replace(sandbox.limits, memory=1 << 29, disk=1 << 24))
    outcome = _run(small, "allocate_alone", bytes=1 << 30)
    assert outcome.error is not None
    assert outcome.error["kind"] == "memory"
    assert _run(small, "write_file", bytes=1 << 25).result == "EFBIG"

    began = time.monotonic()
    outcome = _run(small, "allocate_together", bytes=200 << 20, processes=4)
    assert time.monotonic() - began < 25
    assert outcome.error is not None
    assert "0.5 GiB of memory" in outcome.error["fact"]
    assert verdict_of(outcome, 60.0).kind is Kind.OUT_OF_MEMORY


@pytest.mark.slow
def test_its_death_is_told_as_it_was_and_leaves_no_process(sandbox: Sandbox) -> None:
    assert _run(sandbox, "end_by", signal=signal.SIGSEGV, leaving=True).signal == "SIGSEGV"
    assert _run(sandbox, "end_by", signal=signal.SIGABRT).signal == "SIGABRT"
    outcome = _run(sandbox, "end_by", exit=7)
    assert (outcome.exit_code, outcome.result, outcome.error) == (7, None, None)
    assert not _processes_in(sandbox)


@pytest.mark.slow
def test_an_interrupt_reaches_it_and_forged_reports_are_ignored(sandbox: Sandbox) -> None:
    pids: list[int] = []

    def interrupt(phase: str) -> None:
        if phase == "run":
            os.kill(pids[0], signal.SIGINT)

    outcome = run_isolated(
        "attacks:wait_for_interrupt",
        {},
        time_limit=60.0,
        sandbox=sandbox,
        on_start=pids.append,
        on_phase=interrupt,
    )
    assert outcome.result == "interrupted"

    phases: list[str] = []
    outcome = run_isolated("attacks:forge", {}, time_limit=3.0, sandbox=sandbox, on_phase=phases.append)
    assert outcome.timed_out  # not by the clock that it set itself
    assert phases == ["run"]


@pytest.mark.slow
@pytest.mark.parametrize("lines", [True, False])
def test_reports_without_an_end_do_not_keep_a_deadline_from_passing(sandbox: Sandbox, lines: bool) -> None:
    began = time.monotonic()
    outcome = run_isolated("attacks:flood", {"lines": lines}, time_limit=3.0, sandbox=sandbox)
    assert outcome.timed_out
    assert outcome.result is None
    assert time.monotonic() - began < 20


LIES: list[Any] = ["x", [1], {"kind": "mismatch", "stage": []}, {"kind": "x"}, 7]


@pytest.mark.slow
def test_an_answer_that_no_job_gives_is_refused_in_one_line(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in LIES:
        outcome = _run(sandbox, "lie", answer=answer)
        with pytest.raises(TorchReproError, match="not of the expected form"):
            verdict_of(outcome, 60.0)
        monkeypatch.setattr(collect, "run_isolated", lambda *args, outcome=outcome, **how: outcome)
        found = collect.measured(BUNDLE, read_manifest(BUNDLE))
        assert "not of the expected form" in found.note


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])


def _processes_in(sandbox: Sandbox) -> list[str]:
    """Return the command lines of processes whose environment names the scratch directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(sandbox.scratch).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found
