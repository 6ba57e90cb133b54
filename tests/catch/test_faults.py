"""Whatever goes wrong while catching: the user's own exception arrives, and nothing half-written is left."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import faulty_backends
import pytest
import torch

from torchrepro import watch, wrap_compiler_debug
from torchrepro.bundle import archive
from torchrepro.bundle.read import read_manifest
from torchrepro.catch import hook, session
from torchrepro.catch.snapshot import Snapshot
from torchrepro.script import save_bundle as save

HERE = Path(__file__).resolve().parent


def function(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def fails(backend: Any = faulty_backends.raises_while_compiling, fn: Any = function) -> Any:
    return torch.compile(fn, backend=backend)


def visible(directory: Path) -> list[str]:
    """What a user would take for a bundle, and what they would have to clean up."""
    return sorted(path.name for path in directory.iterdir() if path.suffix != ".log")


@pytest.mark.slow
@pytest.mark.parametrize("level", [2, 3])
def test_a_full_disk_is_one_line_and_the_exception_arrives(level: int, tmp_path: Path) -> None:
    """The kernel itself refuses the write: files of the process may have 4 KiB at most."""
    program = tmp_path / "program.py"
    program.write_text(f"""
import resource, signal, sys
sys.path.insert(0, {str(HERE)!r})
import torch, torchrepro, faulty_backends
torch.compile(lambda x: x.cos(), backend="eager")(torch.ones(1))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
torchrepro.enable(level={level}, out="out")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    torch.compile(lambda x: x.sin(), backend=faulty_backends.raises_while_running)(torch.randn(5000))
except RuntimeError as exc:
    print("arrived:", exc)
print("result", torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
""")
    finished = subprocess.run(
        [sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert finished.stdout == "arrived: the kernel failed\nresult 2.0\n", finished.stderr
    assert finished.stderr.count("torchrepro: could not write") == 1
    assert "File too large" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert not (tmp_path / "out").exists() or visible(tmp_path / "out") == []


def test_a_graph_that_cannot_be_kept_is_compiled_as_if_unwatched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    def cannot(*args: Any, **kwargs: Any) -> Snapshot:
        raise ValueError("this graph has something that is no data")

    monkeypatch.setattr(Snapshot, "take", cannot)
    with watch(level=4, out=tmp_path):
        assert torch.equal(fails(faulty_backends.healthy)(torch.zeros(3)), torch.ones(3))
        assert torch.equal(
            fails(faulty_backends.healthy, lambda x: x + 2)(torch.zeros(3)), torch.full((3,), 2.0)
        )
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("torchrepro: could not keep a graph (ValueError: this graph has something")
    details = Path(lines[0].rpartition("details: ")[2])
    assert details.read_text().count("Traceback") == 2
    assert visible(tmp_path) == []


def test_an_input_that_is_no_data_is_named_in_the_bundle(tmp_path: Path) -> None:
    compiler = wrap_compiler_debug(
        faulty_backends.raises_while_running, "faulty_backends:raises_while_running", level=2, out=tmp_path
    )
    graph = torch.fx.symbolic_trace(lambda x, y: x + 1)
    run = compiler(graph, [torch.ones(2), threading.Lock()])
    with pytest.raises(RuntimeError, match="the kernel failed"):
        run(torch.ones(2), threading.Lock())
    (bundle,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert read_manifest(bundle).missing == ("input.1 (_thread.lock)",)
    assert "input.1: a _thread.lock is not kept" in "\n".join(read_manifest(bundle).notes)


@pytest.mark.parametrize("level", [2, 3])
def test_ctrl_c_during_the_dump_does_not_replace_the_users_exception(
    level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    original = archive.move_without_replacing
    writes: list[Path] = []

    def interrupted(source: Path, target: Path) -> None:
        writes.append(target)
        if len(writes) == (2 if level == 3 else 1):  # at level 3 the first write is the one before the call
            raise KeyboardInterrupt
        original(source, target)

    monkeypatch.setattr(archive, "move_without_replacing", interrupted)
    with watch(level=level, out=tmp_path), pytest.raises(Exception, match="no kernel for this"):
        fails()(torch.ones(3))
    assert visible(tmp_path) == []
    assert "interrupted while trying to write a bundle" in capfd.readouterr().err


def test_ctrl_c_before_the_call_is_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path, storages: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(save, "write_storages", interrupted)
    with watch(level=3, out=tmp_path), pytest.raises(KeyboardInterrupt):
        fails(faulty_backends.healthy)(torch.ones(3))
    assert visible(tmp_path) == []


def test_a_check_that_breaks_does_not_break_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    def broken(*args: Any) -> Any:
        raise ZeroDivisionError("our own bug")

    monkeypatch.setattr(hook.Checker, "check", broken)
    run = fails(faulty_backends.healthy)
    with watch(level=4, out=tmp_path):
        for _ in range(3):
            assert torch.equal(run(torch.zeros(3)), torch.ones(3))
    err = capfd.readouterr().err
    assert err.count("torchrepro: could not check a call (ZeroDivisionError: our own bug)") == 1


def test_a_closed_standard_error_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull) as closed:
        pass
    for unusable in (closed, None):
        monkeypatch.setattr(sys, "stderr", unusable)
        with pytest.raises((ValueError, AttributeError)):
            sys.stderr.write("a line")  # it would stop a program that does not guard against it
        session.say("nobody reads this")
    readable = io.StringIO()
    monkeypatch.setattr(sys, "stderr", readable)
    session.say("the user reads this")
    assert readable.getvalue() == "torchrepro: the user reads this\n"
