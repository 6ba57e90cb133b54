"""The watch does not change what is compiled: inductor writes the same files, byte for byte, without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import torchrepro

pytestmark = pytest.mark.slow

PROGRAM = """
import torch

torch.manual_seed(0)
weight = torch.randn(8, requires_grad=True)
step = torch.compile(lambda x: torch.sin(x * weight).square().mean())
for _ in range(2):
    step(torch.randn(4, 8)).backward()
"""


class Workshop:
    """Compiles the program with fresh caches, always under the same path, which is part of some texts."""

    def __init__(self, directory: Path) -> None:
        self._cache = directory / "cache"
        self._out = directory / "out"
        self._program = directory / "program.py"
        self._program.write_text(PROGRAM)
        self._environ = {"TORCHINDUCTOR_CACHE_DIR": str(self._cache)}
        self._runs = 0

    def unwatched(self) -> dict[str, bytes]:
        command = [sys.executable, str(self._program)]
        subprocess.run(command, env=os.environ | self._environ, check=True, timeout=200)
        return self._generated()

    def watched(self, level: int) -> dict[str, bytes]:
        finished = torchrepro("run", "--level", level, "--out", self._out, self._program, **self._environ)
        assert finished.returncode == 0, finished.stderr
        return self._generated()

    def _generated(self) -> dict[str, bytes]:
        """Names and contents of what inductor wrote."""
        written = {
            str(path.relative_to(self._cache)): path.read_bytes()
            for path in self._cache.rglob("*")
            if path.suffix in (".py", ".cpp", ".h")
        }
        self._runs += 1
        self._cache.rename(self._cache.with_name(f"cache-{self._runs}"))
        return written


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("generated"))


@pytest.fixture(scope="module")
def unwatched(workshop: Workshop) -> dict[str, bytes]:
    return workshop.unwatched()


@pytest.mark.thorough
@pytest.mark.parametrize("level", [2, 3, 4])
def test_forward_and_backward_are_compiled_to_the_same_files(
    level: int, workshop: Workshop, unwatched: dict[str, bytes]
) -> None:
    assert sum(name.endswith(".py") for name in unwatched) >= 2
    assert sum(name.endswith(".cpp") for name in unwatched) >= 2
    watched = workshop.watched(level)
    assert watched.keys() == unwatched.keys()
    assert watched == unwatched
