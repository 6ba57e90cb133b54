"""Each kind of probe with a failure planted into inductor: found, checked, minified, located, in a bucket."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import answer, torchrepro

CASES = Path(__file__).resolve().parent.parent / "cases"
PLANTS = {
    "sizes": "layers",
    "repeat": "layers",
    "recompile": "layers",
    "recompile again": "layers",
    "batch": "layers",
    "cache": "layers",
    "hold": "layers",
    "threads": "layers",
    "slow": "large",
    "fat": "large",
    "slow_compile": "large",
}

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_planted_passes_through_every_verb(plant: str, tmp_path: Path) -> None:
    shutil.copy(CASES / "probes" / "model.py", tmp_path)
    kind, model = plant.partition(" ")[0], f"model.py:{PLANTS[plant]}"
    site, inject = CASES / "injected" / "_site", CASES / "probes" / "inject.py"
    planted = {"PYTHONPATH": str(site), "FXBUG": str(inject), "PLANT": plant}
    asked = ("--only", kind, "--seconds", "20", "--json")

    healthy = torchrepro("probe", model, *asked, cwd=tmp_path)
    assert healthy.returncode == 0, healthy.stdout
    (row,) = answer(torchrepro("probe", model, *asked, "--save", "kept", cwd=tmp_path, **planted))["probes"]
    assert (row["verdict"], row["signature"]) == (kind, kind), row

    bundle = tmp_path / row["bundle"]
    checked = answer(torchrepro("check", bundle, "--json", cwd=tmp_path, **planted))
    assert (checked["reproduces"], checked["signature"]) == (True, kind), checked
    assert answer(torchrepro("check", bundle, "--json", cwd=tmp_path))["verdict"] == "pass"
    (row,) = answer(torchrepro("probe", bundle, *asked, cwd=tmp_path, **planted))["probes"]
    assert row["verdict"] == kind, row

    minified = answer(
        torchrepro("minify", bundle, "--no-explain", "--json", cwd=tmp_path, timeout=600, **planted)
    )
    assert (minified["reproduces"], minified["signature"]) == (True, kind), minified
    assert minified["ops"] <= 2, minified
    assert script_fails(minified["script"], tmp_path / "planted", planted)
    assert not script_fails(minified["script"], tmp_path / "healthy", {})

    located = answer(torchrepro("locate", bundle, "--json", cwd=tmp_path, timeout=600, **planted))
    assert located["stage"] == "backend", located
    (added,) = answer(torchrepro("corpus", "add", tmp_path / "corpus", bundle, "--json"))["added"]
    assert added["signature"] == kind, added


def script_fails(script: str, cache: Path, environ: dict[str, str]) -> bool:
    """Run a script as a maintainer does, with a cache of its own, because caches do not know of plants."""
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), **environ}
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, env=variables)
    assert ran.returncode == 0 or "AssertionError" in ran.stderr, ran.stderr
    return ran.returncode != 0
