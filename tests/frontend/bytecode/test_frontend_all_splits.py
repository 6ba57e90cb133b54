"""Every feature of the language, and more, is split at the instructions it runs, in every Python found."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import bytecode
import pytest
from pythons import python

import torchrepro

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "every"),
    [
        pytest.param((3, 11), 3, id="3.11-each-third"),
        pytest.param((3, 11), 1, id="3.11", marks=pytest.mark.thorough),
        pytest.param((3, 12), 1, id="3.12", marks=pytest.mark.thorough),
        pytest.param((3, 13), 1, id="3.13", marks=pytest.mark.thorough),
    ],
)
def test_a_function_goes_on_as_if_it_had_not_been_split(
    version: tuple[int, int], every: int, tmp_path: Path
) -> None:
    interpreter = python(version)
    if interpreter is None:
        pytest.skip(f"no Python {version[0]}.{version[1]} on this machine (PATH, pyenv)")
    # Nothing else of this environment: its compiled packages are for one Python only.
    (tmp_path / "bytecode").symlink_to(Path(bytecode.__file__).parent)
    place = tmp_path / "place"
    place.write_bytes(b" " * 200)
    path = os.pathsep.join(map(str, (Path(torchrepro.__file__).parent.parent, tmp_path)))
    ran = subprocess.run(
        [interpreter, str(HERE / "all_splits.py"), str(place), str(every)],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    last = place.read_text().strip()
    assert ran.returncode == 0, f"exit status {ran.returncode}; last entered: {last}\n{ran.stderr[-4000:]}"
    assert "CALL_KW" in ran.stdout
    print(ran.stdout)
