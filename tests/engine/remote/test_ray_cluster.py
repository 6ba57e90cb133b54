"""A real Ray cluster of three nodes: lost workers, lost nodes and cancelled tasks cost nothing but time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from clusters import cluster_of
from executing import soon
from sending import remote, run, task

from torchrepro.engine.processes.fresh_process import verdict_of
from torchrepro.engine.remote.carried import submit_with
from torchrepro.engine.remote.ray_cluster import RayCluster, ray_cluster
from torchrepro.nouns.errors import TorchReproError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with cluster_of(3) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def connected(nodes: Any) -> Iterator[RayCluster]:
    with ray_cluster("ray") as connected:
        yield connected


def pids_in(told: Path, lines: int = 1) -> list[list[int]]:
    """What candidates have written about themselves: their own pid, their host's and their worker's."""
    assert soon(lambda: told.exists() and len(told.read_text().splitlines()) >= lines, 120)
    return [[int(pid) for pid in line.split()] for line in told.read_text().splitlines()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_outcomes_are_those_of_children_and_a_cancelled_candidate_leaves_its_host_warm(
    connected: RayCluster, tmp_path: Path
) -> None:
    with connected.executor("a test") as pool, remote(pool, 1) as sending:
        large = torch.arange(200_000, dtype=torch.float64)
        assert run(sending, task("remote_jobs:values", large)).result["sums"] == [float(large.sum())]
        crash = run(sending, task("candidate_jobs:dies", signal="SIGSEGV"))
        assert verdict_of(crash, 60).signal == "SIGSEGV"
        cancelled = task("remote_jobs:family", told=str(tmp_path / "told"), wait=str(tmp_path / "never"))
        sending.start(cancelled)
        ((candidate, host, _),) = pids_in(tmp_path / "told")
        sending.cancel(cancelled)
        assert soon(lambda: not is_alive(candidate))
        assert run(sending, task("remote_jobs:family")).result[1] == host


def test_a_worker_that_is_killed_in_the_middle_of_a_candidate_costs_a_retry(
    connected: RayCluster, tmp_path: Path
) -> None:
    told, wait = tmp_path / "told", tmp_path / "wait"
    with connected.executor("a test") as pool, remote(pool, 1) as sending:
        one = task("remote_jobs:family", told=str(told), wait=str(wait))
        sending.start(one)
        (lost,) = pids_in(told)
        os.kill(lost[2], signal.SIGKILL)
        wait.touch()
        ended, outcome = sending.wait()
    assert ended is one
    assert outcome.result[2] != lost[2]
    assert soon(lambda: not any(map(is_alive, lost)))


@pytest.mark.thorough
def test_a_node_that_is_lost_in_the_middle_of_candidates_costs_a_retry(
    connected: RayCluster, nodes: Any, tmp_path: Path
) -> None:
    told, wait = tmp_path / "told", tmp_path / "wait"
    with connected.executor("a test") as pool, remote(pool, 3) as sending:
        for _ in range(3):
            sending.start(task("remote_jobs:family", told=str(told), wait=str(wait)))
        before = pids_in(told, 3)
        nodes.remove_node(nodes.worker_nodes.copy().pop(), allow_graceful=False)
        assert soon(lambda: any(not is_alive(worker) for _, _, worker in before), 60)
        wait.touch()
        results = [sending.wait()[1].result for _ in range(3)]
    lost = [pids for pids in before if pids not in results]
    assert len(lost) == 1
    assert soon(lambda: not any(is_alive(pid) for pids in lost for pid in pids))


@dataclass(frozen=True)
class Reading:
    """What is read on a node: files of a path that only the driver has."""

    path: Path


def read_there(reading: Reading) -> dict[str, bytes]:
    found = reading.path.iterdir() if reading.path.is_dir() else [reading.path]
    return {file.name: file.read_bytes() for file in found}


@pytest.mark.parametrize("is_directory", [True, False])
def test_files_of_the_driver_travel_with_a_call(
    connected: RayCluster, tmp_path: Path, is_directory: bool
) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for name in ("manifest.json", "graph.py", "unrelated.txt"):
        (bundle / name).write_text(name)
    path = bundle if is_directory else bundle / "graph.py"
    with connected.executor("a test") as pool:
        asked = submit_with(pool, read_there, Reading(path), "path", label="one bundle")
        for file in bundle.iterdir():
            file.unlink()
        found = asked.result(timeout=120)
    members = ("manifest.json", "graph.py") if is_directory else ("graph.py",)
    assert found == {name: name.encode() for name in members}


def name_there(reading: Reading) -> str:
    import ray

    return str(ray.get_runtime_context().get_task_name())


def test_the_dashboard_shows_of_which_bundle_a_task_is(connected: RayCluster, tmp_path: Path) -> None:
    (tmp_path / "graph.py").touch()
    with connected.executor("corpus failures") as pool:
        asked = submit_with(pool, name_there, Reading(tmp_path), "path", label="4f0c9a1e")
        assert asked.result(timeout=120) == "corpus failures 4f0c9a1e"


def test_a_bundle_on_a_device_is_refused_by_a_cluster_without_one(connected: RayCluster) -> None:
    with pytest.raises(TorchReproError, match="the cluster has no GPU"):
        connected.executor("a test", on_device=True)
