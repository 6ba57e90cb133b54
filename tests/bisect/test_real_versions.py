"""Real bugs under the released versions of torch: which one fixed it. Makes environments of 1.3 GB each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import CASES, answer, torchrepro

from torchrepro.bisect.bisect import versions_of_torch
from torchrepro.bisect.series import Wanted
from torchrepro.nouns.errors import TorchReproError

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]
FIXED = {"case_195422": "2.14.0", "case_fuzz_acosh": "2.14.0", "case_198131": "2.15.0"}


@pytest.fixture(scope="module", autouse=True)
def _registry() -> None:
    try:
        listed = versions_of_torch(Wanted(), None, False)
    except TorchReproError as exc:
        pytest.skip(f"no package index to install torch from: {exc}")
    missing = {"2.13.0", "2.14.0", "2.15.0"} - {version.partition("+")[0] for version in listed}
    if missing:
        pytest.skip(f"the package index has no torch {', '.join(sorted(missing))}")


@pytest.mark.parametrize("name", FIXED)
def test_the_version_that_fixed_a_real_bug_is_found(name: str, tmp_path: Path):
    saved = answer(torchrepro("compare", f"{CASES / name}.py:build", "--save", tmp_path / "saved", "--json"))
    finished = torchrepro(
        *("bisect", saved["bundle"], "--torch", "2.13..2.15", "--json", "--out", tmp_path / "out"),
        timeout=1700,
    )
    found = answer(finished)
    (change,) = found["changes"]
    assert change["after"]["setting"] == FIXED[name]
    assert (change["before"]["state"], change["after"]["state"]) == ("same failure", "passes")
    assert change["before"]["commit"] != change["after"]["commit"]
    if name == "case_fuzz_acosh":  # the kernel calls what was fixed
        assert change["code"] == ""
        assert change["about_code"].startswith("the same")
    else:
        assert change["code"].startswith(f"--- {change['before']['setting']}\n+++ {FIXED[name]}\n")
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == found
