"""Where an answer is kept, and when it is given again. No torch, no process."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from torchrepro.engine.search.run_directory import Identity, write_json
from torchrepro.locate.settings import locate_directory
from torchrepro.nouns.results import GuiltyOp, Located, Way
from torchrepro.nouns.verdict import Kind, Stage

FOUND = Located(
    bundle="b",
    kind=Kind.NON_FINITE,
    stage=Stage.BACKEND,
    op=GuiltyOp("exp", "torch.exp", Way.OUTPUTS, eager_error=0.0, compiled_error=math.inf),
)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "failing"
    path.mkdir()
    (path / "manifest.json").write_text("{}")
    return path


def test_it_is_inside_a_bundle_and_beside_a_zip(bundle: Path, tmp_path: Path) -> None:
    assert locate_directory(None, bundle)[0].path == bundle / "located"
    (tmp_path / "other.zip").write_bytes(b"")
    assert locate_directory(None, tmp_path / "other.zip")[0].path == tmp_path / "other.located"
    assert locate_directory(tmp_path / "here", bundle)[0].path == tmp_path / "here"


def test_an_answer_in_a_bundle_does_not_change_the_bundle(bundle: Path) -> None:
    before = Identity.of(bundle)
    directory, _ = locate_directory(None, bundle)
    write_json(directory.result, FOUND.to_dict())
    assert Identity.of(bundle) == before
    (bundle / "graph.py").write_text("")
    assert Identity.of(bundle).changed_since(before) == "the bundle has changed"


def test_a_finished_answer_is_given_again_infinity_included(bundle: Path) -> None:
    directory, _ = locate_directory(None, bundle)
    assert directory.finished() is None
    write_json(directory.result, FOUND.to_dict())
    assert directory.finished() == FOUND


def test_one_that_was_stopped_or_damaged_is_not_finished(bundle: Path) -> None:
    directory, _ = locate_directory(None, bundle)
    write_json(directory.result, replace(FOUND, stopped="the time is up").to_dict())
    assert directory.finished() is None
    directory.result.write_text('{"bundle": 3}')
    assert directory.finished() is None
    directory.result.write_text('{"bun')
    assert directory.finished() is None


def test_starting_over_removes_what_a_run_left_and_nothing_else(bundle: Path) -> None:
    directory, _ = locate_directory(None, bundle)
    identity = Identity(bundle="abc")
    directory.begin(identity, fresh=False)
    for name in ("result.json", "kernel.cpp", "output_code.py"):
        (directory.path / name).write_text("")
    directory.graph.mkdir()
    (directory.path / "mine.txt").write_text("")
    assert directory.begin(identity, fresh=True) == ""
    assert sorted(path.name for path in directory.path.iterdir()) == ["mine.txt", "run.json"]
