"""A full or read-only disk, and no file descriptors: one line, the program goes on, its exit code is kept."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faulty_backends
import pytest
import torch
from commands import torchrepro

from torchrepro import watch
from torchrepro.bundle.read import read_manifest
from torchrepro.catch import caught, launcher, places
from torchrepro.catch.caught import Death, caught_in, finish_unfinished, write_summary
from torchrepro.catch.settings import WatchSettings
from torchrepro.nouns.errors import TorchReproError, refused_by_system

HERE = Path(__file__).resolve().parent
REFUSALS = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO, errno.ENOENT]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary directory, for this test alone."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory / f"torchrepro-out-{os.geteuid()}"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def refuse_writes(monkeypatch: pytest.MonkeyPatch, number: int, *below: Path) -> None:
    """Let the system refuse every member of a bundle and every JSON file below some directories."""
    original = Path.write_bytes, Path.write_text

    def refused(path: Path) -> bool:
        return any(directory in path.parents for directory in below)

    def write_bytes(path: Path, data: bytes) -> int:
        if refused(path):
            raise OSError(number, os.strerror(number), str(path))
        return original[0](path, data)

    def write_text(path: Path, data: str, *args: Any, **kwargs: Any) -> int:
        if refused(path):
            raise OSError(number, os.strerror(number), str(path))
        return original[1](path, data, *args, **kwargs)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    monkeypatch.setattr(Path, "write_text", write_text)


def fail(level: int, out: Path) -> Any:
    compiled = torch.compile(lambda x: x.sin() + 1, backend=faulty_backends.raises_while_running)
    with watch(level=level, out=out) as watching, pytest.raises(RuntimeError, match="the kernel failed"):
        compiled(torch.ones(3))
    return watching


@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.__getitem__)
@pytest.mark.parametrize("level", [2, 3])
def test_bundles_go_elsewhere_if_their_directory_refuses(
    level: int, number: int, out: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    refuse_writes(monkeypatch, number, out)
    watching = fail(level, out)
    (bundle,) = watching.kept
    assert bundle.parent == temporary
    assert read_manifest(bundle).expected is not None
    lines = capfd.readouterr().err.splitlines()
    assert lines == [
        f"torchrepro: {out} cannot be written to ({os.strerror(number)}); bundles go to {temporary}"
    ]
    assert [found.path for found in caught_in(out, watching.run_id)] == [bundle]
    assert list(out.iterdir()) == []


def test_without_any_place_it_is_one_line(
    out: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    refuse_writes(monkeypatch, errno.ENOSPC, out, temporary)
    assert fail(3, out).kept == []
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2, lines
    assert "bundles go to" in lines[0]
    assert "No space left on device" in lines[1]
    assert [path for path in (*out.iterdir(), *temporary.iterdir()) if path.is_dir()] == []


def test_a_directory_of_another_user_in_the_temporary_directory_is_refused(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary.parent / "theirs").mkdir()
    temporary.symlink_to("theirs")
    with pytest.raises(PermissionError):
        places.elsewhere()


@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.__getitem__)
def test_a_bundle_of_a_dead_process_is_finished_elsewhere(
    number: int, out: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished, death = in_flight(out)
    refuse_writes(monkeypatch, number, out)
    finish_unfinished(out, "run", death)
    (found,) = caught_in(out, "run")
    assert (found.verdict, found.path.parent) == ("crash", temporary)
    assert not unfinished.exists()
    assert write_summary(out, "run") == temporary / "summary.json"
    assert json.loads((temporary / "summary.json").read_text())["bundles"][0]["path"] == str(found.path)


def test_an_unfinished_bundle_stays_if_it_cannot_be_finished(
    out: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished, death = in_flight(out)
    refuse_writes(monkeypatch, errno.ENOSPC, out, temporary)
    with pytest.raises(TorchReproError, match="No space left"):
        finish_unfinished(out, "run", death)
    assert [found.path for found in caught_in(out, "run")] == [unfinished]


def in_flight(out: Path) -> tuple[Path, Death]:
    """An unfinished bundle whose process has died inside its call."""
    graph = torch.fx.symbolic_trace(lambda x: (x + 1,))
    from torchrepro.catch.backend import save_graph_repro

    bundle = save_graph_repro(
        out / f"run-0{caught.UNFINISHED}", graph, [torch.ones(2)], "inductor", run_id="run"
    )
    child = subprocess.Popen(["true"])
    child.wait()
    record = {"pid": child.pid, "phase": "run", "since": 0.0}
    bundle.with_name(f".{bundle.name}.flight").write_text(json.dumps(record))
    return bundle, Death(child.pid, -11)


def test_the_program_runs_and_its_exit_code_arrives(
    out: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit(7)")
    refuse_writes(monkeypatch, errno.ENOSPC, out, temporary)
    ended = launcher.run_program([str(program)], WatchSettings(out=out, run_id="run"))
    assert ended.exit_code == 7
    assert capfd.readouterr().err.splitlines() == [
        "torchrepro: could not write summary.json (No space left on device)"
    ]


def test_an_error_of_the_system_is_no_bug_of_torchrepro() -> None:
    full = refused_by_system(OSError(errno.ENOSPC, "No space left on device", "result.json"))
    assert str(full) == (
        "No space left on device (result.json); free some space, or choose a directory on another disk"
    )
    assert refused_by_system(OSError(errno.EPIPE, "Broken pipe")) is None
    assert refused_by_system(ValueError()) is None


FULL = """
import os, sys
sys.path.insert(0, {here!r})
import torch, faulty_backends
filler = os.open("small/filler", os.O_WRONLY | os.O_CREAT)
try:
    while True:
        os.write(filler, bytes(1 << 12))
except OSError:
    pass
try:
    torch.compile(lambda x: x.sin(), backend=faulty_backends.raises_while_running)(torch.randn(5000))
except RuntimeError as exc:
    print("arrived:", exc)
sys.exit(3)
"""


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "small"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_small_disk_keeps_nothing_half_written(small: Path, temporary: Path) -> None:
    compiled = torch.compile(lambda x: x.sin(), backend=faulty_backends.raises_while_running)
    with watch(level=3, out=small) as watching, pytest.raises(RuntimeError, match="the kernel failed"):
        compiled(torch.randn(1 << 20))
    (bundle,) = watching.kept
    assert bundle.parent == temporary
    assert list(small.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("level", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_a_disk_that_fills_up_while_the_program_runs(level: int, tmp_path: Path, small: Path) -> None:
    (tmp_path / "program.py").write_text(FULL.format(here=str(HERE)))
    (tmp_path / "temporary").mkdir()
    words = ("run", "--level", level, "--out", "small/out", "program.py")
    finished = torchrepro(*words, cwd=tmp_path, TMPDIR=str(tmp_path / "temporary"))
    assert finished.returncode == 3, finished.stderr
    assert "arrived: the kernel failed" in finished.stdout
    assert "Traceback" not in finished.stderr
    assert finished.stderr.count("No space left on device") == 1, finished.stderr
    (bundle,) = (tmp_path / "temporary").glob("torchrepro-out-*/*-run_error")
    assert f"  bundle  {bundle}" in finished.stderr
    assert read_manifest(bundle).values["input.0"].size == (5000,)


LEAK = """
import os, sys
sys.path.insert(0, {here!r})
import torch, faulty_backends
torch.compile(lambda x: x.cos(), backend="eager")(torch.ones(1))
leaked = []
try:
    while True:
        leaked.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
try:
    torch.compile(lambda x: x.sin(), backend=faulty_backends.raises_while_running)(torch.randn(50))
except RuntimeError as exc:
    print("arrived:", exc)
sys.exit(3)
"""


@pytest.mark.slow
def test_a_program_without_file_descriptors(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LEAK.format(here=str(HERE)))
    finished = torchrepro("run", "--out", "out", "program.py", cwd=tmp_path)
    assert finished.returncode == 3, finished.stderr
    assert "arrived: the kernel failed" in finished.stdout
    assert "Traceback" not in finished.stderr
    (bundle,) = (tmp_path / "out").glob("*-run_error")
    assert read_manifest(bundle).values["input.0"].size == (50,)
