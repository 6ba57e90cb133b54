"""A bundle tells without torch whether it needs more than a CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import torch

from torchrepro.bundle.manifest import Manifest, devices_of
from torchrepro.bundle.read import read_manifest
from torchrepro.nouns.repro import Place, Repro
from torchrepro.script.save_bundle import save_bundle


def manifest_of(repro: Repro, directory: Path) -> Manifest:
    return read_manifest(save_bundle(repro, directory / "bundle"))


def repro_with(*inputs: object) -> Repro:
    return Repro(torch.fx.symbolic_trace(lambda *given: given), inputs)


def test_values_on_the_cpu_need_no_other_device(tmp_path: Path) -> None:
    given = [torch.ones(3), torch.randn(20, 20), torch.tensor(1, device="meta"), torch.device("cpu"), 3]
    assert devices_of(manifest_of(repro_with(*given), tmp_path)) == frozenset()


def test_a_device_among_the_values_is_found(tmp_path: Path) -> None:
    assert devices_of(manifest_of(repro_with(torch.device("cuda:1")), tmp_path)) == {"cuda"}


def test_a_generators_state_counts_for_the_users_own_code_alone(tmp_path: Path) -> None:
    repro = repro_with(torch.ones(2))
    repro = replace(repro, ambient=replace(repro.ambient, rng={"cuda:0": torch.zeros(16, dtype=torch.uint8)}))
    manifest = manifest_of(repro, tmp_path)
    assert devices_of(manifest) == frozenset()
    whole = msgspec.structs.replace(manifest, place=Place.BEFORE_CAPTURE)
    assert devices_of(whole) == {"cuda"}
