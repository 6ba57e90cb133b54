"""`--against`: the lines in which two environments differ, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from findings import failing_bundle

from torchrepro.nouns.environment import Environment
from torchrepro.nouns.errors import BundleError, TorchReproError
from torchrepro.report.collect import collect
from torchrepro.report.environments import Surrounding, differences, other_place
from torchrepro.report.formats import as_json


def test_only_what_differs_is_shown() -> None:
    ours = Surrounding(Environment(torch="2.12", python="3.11", gpus=("A", "B")), {"mode": "x", "same": 1})
    other = Surrounding(Environment(torch="2.13", python="3.11"), {"same": 1, "OMP_NUM_THREADS": "2"})
    found = {line.name: (line.here, line.there) for line in differences(ours, other)}
    assert found == {
        "torch": ("2.12", "2.13"),
        "gpus": ("A, B", "not set"),
        "mode": ("x", "not set"),
        "OMP_NUM_THREADS": ("not set", "2"),
    }


def test_a_bundle_and_its_report_are_the_same_place(tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    report = tmp_path / "report.json"
    report.write_text(as_json(collect(bundle)))
    for against in (bundle, report):
        contents = collect(bundle, other=other_place(str(against)))
        assert contents.differences == ()
        assert contents.against == against.name


def test_another_version_of_torch_is_found_in_a_report(tmp_path: Path) -> None:
    bundle = failing_bundle(tmp_path / "failing")
    contents = collect(bundle)
    assert contents.environment is not None
    older = replace(contents, environment=replace(contents.environment, torch="2.11.0"))
    (tmp_path / "older.json").write_text(as_json(older))
    found = collect(bundle, other=other_place(str(tmp_path / "older.json"))).differences
    assert [(line.name, line.there) for line in found] == [("torch", "2.11.0")]


def test_a_damaged_bundle_is_no_environment(tmp_path: Path) -> None:
    manifest = failing_bundle(tmp_path / "other") / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"platform"', b'"platforM"', 1))
    with pytest.raises(BundleError, match=r"manifest\.json of .* is damaged"):
        other_place(str(tmp_path / "other"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"environment": 3}'])
def test_a_file_that_is_no_report_is_one_clear_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(TorchReproError, match="is no report"):
        other_place(str(tmp_path / "other.json"))
