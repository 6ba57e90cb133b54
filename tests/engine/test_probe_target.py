from __future__ import annotations

from pathlib import Path

import pytest

from tests.bundle.hostile import CORPUS
from torchrepro.bundle.provenance import is_own
from torchrepro.bundle.read import read_manifest
from torchrepro.engine.probe_target import Found, ProbedTarget
from torchrepro.nouns.probe import Probe
from torchrepro.nouns.repro import ModelRequest
from torchrepro.nouns.verdict import Kind, Verdict


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["cxx_in_the_environment", "march_in_the_settings", "best_in_a_run_directory"]
)
def test_what_is_saved_of_a_strangers_bundle_stays_a_strangers(name: str, tmp_path: Path) -> None:
    bundle = CORPUS[name](tmp_path / "bundle", tmp_path / "canary")
    target = ProbedTarget(ModelRequest(str(bundle)), True, tmp_path, save_to=tmp_path / "saved")
    saved = target._saved(Found(bundle, Verdict(Kind.MISMATCH), Probe(Kind.SIZES)))
    assert saved is not None
    assert not is_own(saved)
    assert read_manifest(saved).ambient.environ == {}
    assert not any(read_manifest(saved).ambient.configs.values())
