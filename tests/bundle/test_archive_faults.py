"""Real faults while a bundle is written: killed with -9, a full disk, a limit on file size."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import pytest

from torchrepro.bundle.archive import write_bundle_files
from torchrepro.bundle.provenance import verify
from torchrepro.bundle.read import PARTIAL_SUFFIX, PROVENANCE, open_bundle_files
from torchrepro.nouns.errors import BundleError

pytestmark = pytest.mark.slow

FILES = {
    "manifest.json": b'{"format": 1}',
    "graph.py": random.Random(0).randbytes(300_000),
    "tensors.safetensors": lambda path: path.write_bytes(TENSORS),
}
TENSORS = random.Random(1).randbytes(700_000)
BOTH = pytest.mark.parametrize("suffix", ["", ".zip"], ids=["directory", "zip"])
fork = get_context("fork")


def assert_complete(path: Path) -> None:
    with open_bundle_files(path) as bundle:
        assert bundle.names == tuple(sorted([*FILES, PROVENANCE]))
        assert verify(bundle), "signed, and every member has the digest that was written"
        assert bundle.read_bytes("manifest.json") == FILES["manifest.json"]
        assert bundle.read_bytes("graph.py") == FILES["graph.py"]
        assert bundle.read_bytes("tensors.safetensors") == TENSORS


def write_for_ever(directory: Path, suffix: str) -> None:
    for index in range(100_000):
        write_bundle_files(directory / f"bundle-{index}{suffix}", FILES)


@BOTH
def test_kill_minus_nine_at_any_moment_leaves_whole_bundles_only(tmp_path: Path, suffix: str) -> None:
    chance = random.Random(2)
    whole, torn = 0, 0
    for attempt in range(20):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        writer = fork.Process(target=write_for_ever, args=(directory, suffix))
        writer.start()
        while not any(directory.iterdir()):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.06))
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        for path in directory.iterdir():
            if path.name.endswith(PARTIAL_SUFFIX):
                torn += 1
                with pytest.raises(BundleError, match="interrupted write"):
                    open_bundle_files(path)
            else:
                whole += 1
                assert_complete(path)
    assert torn, "no writer was killed in the middle: the test tested nothing"
    assert whole, "no writer finished anything: the test tested nothing"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@BOTH
def test_a_full_disk_is_one_clear_line_and_leaves_room_again(small_disk: Path, suffix: str) -> None:
    with pytest.raises(BundleError, match="No space left on device; free some space"):
        write_bundle_files(small_disk / f"bundle{suffix}", FILES)
    assert list(small_disk.iterdir()) == []
    (small_disk / "room").write_bytes(bytes(800_000))


def within_a_limit(directory: Path, suffix: str, report: Callable[[str], None]) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
    try:
        write_bundle_files(directory / f"bundle{suffix}", FILES)
    except BundleError as error:
        report(str(error))


@BOTH
def test_a_limit_on_file_size_is_one_clear_line(tmp_path: Path, suffix: str) -> None:
    answers = fork.SimpleQueue()
    writer = fork.Process(target=within_a_limit, args=(tmp_path, suffix, answers.put))
    writer.start()
    writer.join()
    assert "File too large; free some space" in answers.get()
    assert list(tmp_path.iterdir()) == []
