"""A real bug, minified here, on pools and on a Ray cluster that loses a node: the same answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from clusters import cluster_of
from executing import soon

from torchrepro import Minified, MinifySettings, Repro, minify_bundle, save_bundle
from torchrepro.bundle.read import PROVENANCE
from torchrepro.engine.remote.ray_cluster import ray_cluster
from torchrepro.nouns.errors import TorchReproError

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)]
SETTINGS = MinifySettings(jobs=3)
_VARIES = ("directory", "bundle", "script", "seconds", "verified_after", "timeline", "sandbox", "notes")


def dequantise(codes: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor]:
    """pytorch#191499: inactive lanes count in the smallest of uint8 values."""
    low, high = codes.amin(), codes.amax()
    w = (codes.float() - low.float()) / (high.float() - low.float()) * 2 - 1
    for _ in range(3):
        x = torch.relu(x + torch.tanh(x @ w) * 0.3)
    return (x,)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    inputs = (torch.randint(90, 200, (12, 12), dtype=torch.uint8), torch.rand(4, 12))
    repro = Repro(torch.fx.symbolic_trace(dequantise), inputs, backward=False)
    return save_bundle(repro, tmp_path_factory.mktemp("bundle") / "dequantise")


@pytest.fixture(scope="module")
def here(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Minified:
    try:
        return minify_bundle(bundle, SETTINGS, out=tmp_path_factory.mktemp("here"))
    except TorchReproError as healthy:
        if "does not fail here" not in healthy.fact:
            raise
        pytest.skip(f"pytorch#191499 does not show with torch {torch.__version__} on this machine: {healthy}")


def same_answer(found: Minified, expected: Minified) -> bool:
    """Compare scripts and results, but for paths and times."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(inner) for name, inner in value.items() if name not in _VARIES}
        return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value

    assert Path(found.script).read_text() == Path(expected.script).read_text()
    assert plain(found.to_dict()) == plain(expected.to_dict())
    return True


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_a_pool_of_the_standard_library_gives_the_same_answer(
    pool: type[Executor], bundle: Path, here: Minified, tmp_path: Path
) -> None:
    with pool(3) as executor:  # type: ignore[call-arg]
        assert same_answer(minify_bundle(bundle, SETTINGS, out=tmp_path, executor=executor), here)


def test_a_strangers_bundle_is_confined_here_and_there(bundle: Path, here: Minified, tmp_path: Path) -> None:
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    for path in bundle.iterdir():
        if path.is_file() and path.name != PROVENANCE:
            (stranger / path.name).write_bytes(path.read_bytes())
    with ThreadPoolExecutor(2) as executor:
        found = minify_bundle(stranger, SETTINGS, out=tmp_path / "out", executor=executor)
    assert found.sandbox
    assert (found.ops, found.inputs, found.elements) == (here.ops, here.inputs, here.elements)
    assert found.reproduces


def test_a_cluster_that_loses_a_node_gives_the_same_answer(
    bundle: Path, here: Minified, tmp_path: Path
) -> None:
    with cluster_of(3) as nodes, ray_cluster("ray") as cluster:
        lost: list[Any] = []

        def lose_a_node(message: Mapping[str, Any]) -> None:
            if not lost and message.get("progress", {}).get("queries", 0) >= 4:
                lost.append(next(iter(nodes.worker_nodes)))
                nodes.remove_node(lost[0], allow_graceful=False)

        found = minify_bundle(
            bundle, SETTINGS, out=tmp_path, executor=cluster.executor_for(bundle), on_message=lose_a_node
        )
    assert lost
    assert same_answer(found, here)


def test_ctrl_c_ends_with_the_best_so_far_and_leaves_no_process_on_the_cluster(
    bundle: Path, here: Minified, tmp_path: Path
) -> None:
    with cluster_of(2):
        command = [sys.executable, "-m", "torchrepro", "minify", str(bundle), "--on", "ray"]
        command += ["--out", str(tmp_path / "out"), "--json"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            assert soon((tmp_path / "out" / "best").exists, 240)
            os.kill(process.pid, signal.SIGINT)
            printed, told = process.communicate(timeout=240)
        assert process.returncode == 1, told
        assert '"stopped": "stopped by the user"' in printed
        hosts = f"{os.sep}torchrepro-host-"
        time.sleep(0.5)
        assert soon(lambda: hosts not in _environments(), 30)


def _environments() -> str:
    """Of all processes of this user that a host of this cluster could be."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "environ").read_bytes().decode(errors="replace"))
            except OSError:
                continue
    return "\n".join(found)
