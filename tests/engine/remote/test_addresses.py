"""A wrong address, no cluster, no Ray: an error at once, with the next step."""

from __future__ import annotations

import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from torchrepro import MinifySettings, Repro, minify_bundle, save_bundle
from torchrepro.engine.remote.ray_cluster import ray_cluster
from torchrepro.nouns.errors import TorchReproError


def refusal(address: str) -> TorchReproError:
    with pytest.raises(TorchReproError) as caught, ray_cluster(address):
        raise AssertionError("there is no such cluster")
    return caught.value


@pytest.mark.parametrize(
    "address", ["slurm", "ray://", "ray://host", "ray://:1", "ray://host:port", "Ray", " "]
)
def test_what_is_no_address_is_refused_with_the_form_of_one(address: str) -> None:
    pytest.importorskip("ray", reason="the extra torchrepro[ray] is not installed")
    refused = refusal(address)
    assert "is no address of a cluster" in refused.fact
    assert "--on ray://HOST:PORT" in refused.next_step


@pytest.mark.parametrize("named_by_variable", [False, True])
def test_a_port_at_which_nobody_listens_is_refused_at_once(
    named_by_variable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="the extra torchrepro[ray] is not installed")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        refused = refusal("ray" if named_by_variable else f"ray://{address}")
    assert "cannot connect to the cluster" in refused.fact
    assert "Connection refused" in refused.fact


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert refusal("ray").next_step == "pip install 'torchrepro[ray]'"


def test_a_command_as_the_oracle_stays_on_this_machine(tmp_path: Path) -> None:
    repro = Repro(torch.fx.symbolic_trace(lambda x: (x + 1,)), (torch.ones(3),))
    bundle = save_bundle(repro, tmp_path / "b")
    with (
        ThreadPoolExecutor(1) as pool,
        pytest.raises(TorchReproError, match="runs on this machine") as caught,
    ):
        minify_bundle(bundle, MinifySettings(oracle="true"), executor=pool)
    assert caught.value.next_step == "leave out --on or --oracle"
