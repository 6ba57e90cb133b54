"""Finds the Pythons of a machine, without knowing the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_ASK = "import sys; print(*sys.version_info[:2], sys.implementation.name)"


@cache
def python(version: tuple[int, int]) -> str | None:
    """The path of a CPython of this version; None where there is none."""
    name = ".".join(map(str, version))
    for candidate in _candidates(name):
        try:
            asked = subprocess.run([candidate, "-c", _ASK], capture_output=True, text=True, timeout=20)
        except OSError:
            continue
        if asked.stdout.split() == [*map(str, version), "cpython"]:
            return candidate
    return None


def _candidates(name: str) -> Iterator[str]:
    if sys.version_info[:2] == tuple(map(int, name.split("."))):
        yield sys.executable
    for command in (f"python{name}", "python3", "python"):
        if found := shutil.which(command):
            yield found
    for root in _pyenv_roots():
        yield from map(str, sorted(root.glob(f"versions/{name}*/bin/python"), reverse=True))


def _pyenv_roots() -> Iterator[Path]:
    if given := os.environ.get("PYENV_ROOT"):
        yield Path(given)
    if pyenv := shutil.which("pyenv"):
        asked = subprocess.run([pyenv, "root"], capture_output=True, text=True, timeout=20)
        if asked.returncode == 0:
            yield Path(asked.stdout.strip())
    yield Path.home() / ".pyenv"
    # A virtual environment knows which Python it was made of, and that one may have siblings.
    yield Path(sys.base_prefix).parent.parent
