"""`torchrepro probe`: a row for each probe, and a bundle that `check`, `minify` and `locate` take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import answer, torchrepro

pytestmark = pytest.mark.slow

PLANTS = '''
import torch

def same_memory(graph, inputs):
    """Return the results of all calls in the memory of the first."""
    memory = []
    def run(*args):
        outputs = [value.detach() for value in graph(*args)]
        if not memory:
            memory.extend(value.clone() for value in outputs)
        return tuple(kept.copy_(value) for kept, value in zip(memory, outputs))
    return run

def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return model.eval().requires_grad_(False), (torch.randn(3, 4),)
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("probe")
    (directory / "plants.py").write_text(PLANTS)
    return directory


@pytest.fixture(scope="module")
def found(place: Path) -> Path:
    """The bundle of a planted failure."""
    words = ("plants.py:build", "--backend", "plants:same_memory", "--only", "hold", "--save", "kept")
    finished = torchrepro("probe", *words, "--json", cwd=place)
    assert finished.returncode == 1, finished.stderr
    (row,) = answer(finished)["probes"]
    assert (row["probe"], row["verdict"], row["signature"]) == ("hold", "hold", "hold")
    return place / row["bundle"]


def test_the_healthy_twin_passes_row_by_row(place: Path) -> None:
    finished = torchrepro(
        "probe", "plants.py:build", "--backend", "aot_eager", "--only", "hold,repeat", cwd=place
    )
    assert finished.returncode == 0, finished.stderr
    assert [line.split()[:2] for line in finished.stdout.splitlines()] == [
        ["repeat", "pass"],
        ["hold", "pass"],
    ]


def test_a_bundle_of_a_finding_reproduces_it(found: Path, place: Path) -> None:
    finished = torchrepro("check", found, "--trust", "plants", "--json", cwd=place)
    assert answer(finished)["reproduces"] is True
    assert finished.returncode == 1


def test_a_finding_is_minified_to_a_script_that_fails(found: Path, place: Path) -> None:
    finished = torchrepro("minify", found, "--trust", "plants", "--json", cwd=place)
    minified = answer(finished)
    assert minified["ops"] == 1, minified
    script = Path(minified["script"])
    assert "kept" in script.read_text()
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=place)
    assert ran.returncode == 1
    assert "AssertionError" in ran.stderr


def test_a_finding_is_located(found: Path, place: Path) -> None:
    located = answer(torchrepro("locate", found, "--trust", "plants", "--json", cwd=place))
    assert located["kind"] == "hold"
    assert located["stage"] == "backend", json.dumps(located)[:2000]


def test_a_wrong_name_suggests_the_right_one(place: Path) -> None:
    finished = torchrepro("probe", "plants.py:build", "--only", "holds", cwd=place)
    assert finished.returncode == 125
    assert "did you mean 'hold'?" in finished.stderr


def test_the_list_names_every_probe() -> None:
    finished = torchrepro("probe", "--list")
    assert finished.returncode == 0
    assert "slow_compile" in finished.stdout


@pytest.mark.thorough
def test_inductors_warm_cache_is_asked_about(place: Path) -> None:
    """The environment of a judging process turns these caches off: the probe has to turn them on again."""
    finished = torchrepro("probe", "plants.py:build", "--only", "cache", cwd=place)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split()[:3] == ["cache", "pass", "1"], finished.stdout
