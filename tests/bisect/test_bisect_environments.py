"""Environments: made once, whole or not at all, by one process at a time."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_uv import install_fake_uv

from torchrepro.bisect.environments import Recipe, environment_for
from torchrepro.bisect.installers import installer_for
from torchrepro.engine.processes.fresh_process import cache_directory
from torchrepro.nouns.errors import TorchReproError

MAKE = "from torchrepro.bisect.environments import *; environment_for(Recipe('torch==2.12.1'), print)"


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the fake uv was asked."""
    monkeypatch.setenv("TORCHREPRO_CACHE_DIR", str(tmp_path / "cache"))
    environ = install_fake_uv(tmp_path / "bin")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return Path(environ["FAKE_LOG"])


def calls(log: Path, word: str) -> int:
    return sum(line.startswith(word) for line in log.read_text().splitlines())


def test_the_versions_of_the_index_are_listed(log: Path):
    installer = installer_for(Path(sys.executable), ())
    assert sorted(installer.versions("torch", before_release=False)) == [
        "2.11.0",
        "2.12.0",
        "2.12.1",
        "2.13.0",
        "2.14.0",
    ]


def test_the_name_depends_on_what_is_in_it(tmp_path: Path):
    wheel = tmp_path / "torch-2.13.0-py3-none-any.whl"
    names = {Recipe("torch==2.12.1").name, Recipe("torch==2.12.1", triton="3.5.0").name}
    names |= {Recipe("torch==2.12.1", more=("einops",)).name, Recipe("torch==2.12.1", devices=True).name}
    for content in (b"one", b"two"):
        wheel.write_bytes(content)
        names.add(Recipe(str(wheel)).name)
    assert len(names) == 6
    assert Recipe("torch==2.12.1").name == Recipe("torch==2.12.1").name


def test_a_failed_installation_leaves_no_environment(log: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FAKE_MISSING", "2.12.1")
    with pytest.raises(TorchReproError, match="no such version"):
        environment_for(Recipe("torch==2.12.1"))
    assert not (cache_directory() / "environments" / Recipe("torch==2.12.1").name).exists()


@pytest.mark.slow
def test_a_killed_installation_is_made_again_and_two_processes_make_one(
    log: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAKE_SECONDS", "30")
    killed = subprocess.Popen([sys.executable, "-c", MAKE])
    deadline = time.monotonic() + 60
    while calls(log, "pip") == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    directory = cache_directory() / "environments" / Recipe("torch==2.12.1").name
    assert directory.exists(), "it was killed while it installed"

    monkeypatch.setenv("FAKE_SECONDS", "0")
    both = [subprocess.Popen([sys.executable, "-c", MAKE]) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert calls(log, "venv") == 2, "the killed one, and one of the two"
    made = environment_for(Recipe("torch==2.12.1"))
    program = "import os; print(os.environ['FAKE_TORCH'])"
    shown = subprocess.run([made.interpreter.python, "-c", program], capture_output=True, text=True)
    assert shown.stderr == ""
    assert shown.stdout == "2.12.1\n"
