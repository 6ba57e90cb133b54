"""What the search process of a hunt asks its children, without any."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from torchrepro.engine.processes.child import Outcome
from torchrepro.engine.processes.executor import Task
from torchrepro.hunt.directory import SUSPECT, HuntDirectory, Judged, Tally
from torchrepro.hunt.loop import _Loop, require_torch
from torchrepro.hunt.settings import HuntSettings
from torchrepro.nouns.errors import TorchReproError


class Children:
    """Python programs that fail in one of two ways; alone, the one that is named passes."""

    workers = 1

    def __init__(
        self, passes: str = "", bundle: str = "", late: bool = False, reducing_seconds: float = 0.0
    ) -> None:
        self.reduced: list[str] = []
        self.done: list[str] = []
        self._bundle = bundle
        self._tasks: deque[Task] = deque()
        self._passes = passes
        self._late = late
        self._reducing_seconds = reducing_seconds

    def start(self, task: Task) -> None:
        self._tasks.append(task)

    def wait(self) -> tuple[Task, Outcome]:
        task = self._tasks.popleft()
        if task.job.endswith("sort_failure"):
            self.done.append("sort")
            return task, Outcome(result={"bucket": task.payload["seed"]}, seconds=1000.0)
        seeds, alone = task.payload["seeds"], task.payload["alone"]
        self.done.append("reduce" if alone else "judge")
        if alone:
            self.reduced += seeds
            if self._late and task.payload.get("reduce", True):
                return task, Outcome(phase="reduce", timed_out=True)
            kind = "pass" if seeds[0] == self._passes else "mismatch"
            signature = f"reduced {self._way(seeds[0])}"
            judged = [Judged(seeds[0], kind, signature=signature, bundle=self._bundle)]
        else:
            judged = [Judged(seed, SUSPECT, signature=self._way(seed)) for seed in seeds]
        seconds = self._reducing_seconds if alone else 0.0
        return task, Outcome(result=msgspec.to_builtins(judged), seconds=seconds)

    @staticmethod
    def _way(seed: str) -> str:
        return f"way {int(seed[-1], 16) % 2}"


class Nobody:
    def send(self, **message: Any) -> None:
        pass


def hunted(directory: Path, children: Children, sort_seconds: float = 0.0) -> Tally:
    settings = HuntSettings(programs=8, batch=4, generators=("python",), sort_seconds=sort_seconds)
    loop = _Loop(settings, HuntDirectory(directory), Tally(), children, Nobody())  # type: ignore[arg-type]
    loop.run()
    return Tally.of(HuntDirectory(directory).judged())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


def test_of_python_programs_that_fail_alike_one_is_reduced(directory: Path) -> None:
    children = Children()
    tally = hunted(directory, children)
    assert [seed[-1] for seed in children.reduced] == ["0", "1"]
    assert tally.programs == len(tally.failures) == 8
    assert {failure.signature for failure in tally.failures.values()} == {"reduced way 0", "reduced way 1"}
    followers = [failure for seed, failure in tally.failures.items() if seed not in children.reduced]
    assert {failure.not_saved[-5:] for failure in followers} == {" does"}


def test_where_the_first_of_them_passes_alone_the_others_are_judged_alone(directory: Path) -> None:
    children = Children(passes="python-0000000")
    tally = hunted(directory, children)
    assert sorted(seed[-1] for seed in children.reduced) == ["0", "1", "2", "4", "6"]
    assert tally.programs == 8
    assert len(tally.failures) == 7


def test_a_reduction_that_takes_too_long_is_no_hang_of_the_compiler(directory: Path) -> None:
    children = Children(late=True)
    tally = hunted(directory, children)
    assert [seed[-1] for seed in children.reduced] == ["0", "0", "1", "1"]
    assert {failure.kind for failure in tally.failures.values()} == {"mismatch"}
    assert len(tally.failures) == 8


def test_a_single_worker_does_not_sort_all_the_time(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HuntDirectory, "keep", lambda directory, judged: None)
    (directory / "buckets").mkdir()
    children = Children(bundle="somewhere")
    tally = hunted(directory, children, 1.0)
    assert children.done == ["judge", "reduce", "reduce", "sort", "judge", "sort"]
    assert len(tally.buckets) == 2


def test_a_single_worker_does_not_reduce_all_the_time(directory: Path) -> None:
    children = Children(reducing_seconds=1000.0)
    tally = hunted(directory, children)
    assert children.done == ["judge", "reduce", "judge", "reduce"]
    assert len(tally.failures) == 8


def test_a_torch_on_the_path_that_hides_the_one_asked_for_is_refused() -> None:
    require_torch("")
    require_torch(str(torch.__version__))
    with pytest.raises(TorchReproError, match=r"torch 2\.9\.0 is to be hunted, and .* imports"):
        require_torch("2.9.0")
