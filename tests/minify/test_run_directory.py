"""The run directory: where it is, who may use it, when a former run still counts. No torch, no process."""

from __future__ import annotations

import fcntl
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from torchrepro.engine.search.run_directory import Identity, held, write_json
from torchrepro.minify.run_directory import MinifySettings, RunDirectory, run_directory
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.results import Minified

IDENTITY = Identity(bundle="abc", torch="2.13.0")


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    found, note = run_directory(tmp_path / "run", beside=tmp_path / "bundle")
    assert note == ""
    return found


def finished(directory: RunDirectory, settings: MinifySettings, **changes: object) -> Minified:
    """A result as a search leaves it."""
    directory.minimal.mkdir()
    (directory.minimal / "repro.py").write_text("")
    values: dict[str, object] = {
        "original": "b",
        "directory": str(directory.path),
        "bundle": str(directory.minimal),
        "script": str(directory.minimal / "repro.py"),
        **dict.fromkeys(("start_ops", "start_inputs", "start_elements", "ops", "inputs", "elements"), 1),
        "queries": 3,
        "original_runs": 3,
        "seconds": 1.5,
        "signature": "mismatch",
        "reproduces": True,
        "scope": settings.scope,
        **changes,
    }
    result = Minified(**values)  # type: ignore[arg-type]
    write_json(directory.result, result.to_dict())
    return result


def test_it_stands_beside_the_bundle_and_a_zip_loses_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    assert run_directory(None, beside=tmp_path / "b")[0].path == tmp_path / "b.minified"
    assert run_directory(None, beside=tmp_path / "c.zip")[0].path == tmp_path / "c.minified"


def test_beside_a_bundle_in_a_place_that_cannot_be_written_it_goes_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "strangers"
    place.write_text("a file, so that nothing can be made in it, whoever runs this test")
    monkeypatch.chdir(tmp_path)
    directory, note = run_directory(None, beside=place / "bundle")
    assert directory.path == tmp_path / "bundle.minified"
    assert "cannot make" in note
    assert str(directory.path) in note


def test_a_directory_that_was_asked_for_and_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TorchReproError, match="--out"):
        run_directory(tmp_path / "file", beside=tmp_path / "b")
    with pytest.raises(TorchReproError, match="--out"):
        run_directory(tmp_path / "file" / "below", beside=tmp_path / "b")


def test_a_directory_with_something_else_in_it_is_left_alone(directory: RunDirectory) -> None:
    (directory.path / "thesis.tex").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(TorchReproError, match=r"thesis\.tex.*--out"):
            directory.begin(IDENTITY, fresh=fresh)
    assert (directory.path / "thesis.tex").exists()


def test_a_former_run_counts_as_long_as_nothing_changed(directory: RunDirectory) -> None:
    assert directory.begin(IDENTITY, fresh=False) == ""
    directory.original.write_text("{}")
    assert directory.begin(IDENTITY, fresh=False) == ""
    assert directory.original.exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"bundle": "xyz"}, "the bundle has changed"),
        ({"torch": "2.14.0"}, "the version of torch has changed"),
        ({"oracle": "./o.sh"}, "the oracle has changed"),
        ({"environ": {"TORCHINDUCTOR_FREEZING": "1"}}, "environment variables"),
    ],
)
def test_what_verdicts_depend_on_starts_it_over_and_is_named(
    directory: RunDirectory, changed: dict[str, object], words: str
) -> None:
    directory.begin(IDENTITY, fresh=False)
    directory.original.write_text("{}")
    (directory.path / "verdicts.sqlite-wal").write_text("")
    (directory.path / "mine.txt").write_text("")
    note = directory.begin(replace(IDENTITY, **changed), fresh=False)  # type: ignore[arg-type]
    assert words in note
    assert sorted(path.name for path in directory.path.iterdir()) == ["mine.txt", "run.json"]
    assert directory.begin(replace(IDENTITY, **changed), fresh=False) == ""  # type: ignore[arg-type]


def test_fresh_starts_over_without_a_word(directory: RunDirectory) -> None:
    directory.begin(IDENTITY, fresh=False)
    directory.original.write_text("{}")
    assert directory.begin(IDENTITY, fresh=True) == ""
    assert not directory.original.exists()


def test_a_damaged_record_starts_it_over(directory: RunDirectory) -> None:
    (directory.path / "run.json").write_text('{"bundle": "a')
    assert "starting over" in directory.begin(IDENTITY, fresh=False)


def test_a_directory_that_came_along_with_a_bundle_is_moved_aside(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHREPRO_CONFIG_DIR", str(tmp_path / "a stranger's"))
    directory.begin(IDENTITY, fresh=False)
    directory.cache.mkdir()
    (directory.cache / "evil.so").write_text("")
    monkeypatch.setenv("TORCHREPRO_CONFIG_DIR", str(tmp_path / "the user's"))
    assert not directory.is_about(IDENTITY)
    assert "this user did not write what was here" in directory.begin(IDENTITY, fresh=False)
    assert [path.name for path in directory.path.iterdir()] == ["run.json"]
    (aside,) = directory.path.parent.glob(f"{directory.path.name}.untrusted-*")
    assert (aside / "cache" / "evil.so").exists()
    assert directory.is_about(IDENTITY)
    assert directory.begin(IDENTITY, fresh=False) == ""


def test_a_copy_of_ones_own_directory_is_not_ones_own(directory: RunDirectory) -> None:
    directory.begin(IDENTITY, fresh=False)
    copied = directory.path.with_name("copied")
    shutil.copytree(directory.path, copied)
    assert directory.is_about(IDENTITY)
    assert not RunDirectory(copied).is_about(IDENTITY)


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_a_lock_that_is_no_file_is_refused_and_not_followed(directory: RunDirectory, kind: str) -> None:
    precious, lock = directory.path.parent / "precious", directory.path / "lock"
    precious.write_text("years of work")
    if kind == "link":
        lock.symlink_to(precious)
    else:
        os.mkfifo(lock) if kind == "fifo" else lock.mkdir()
    with pytest.raises(TorchReproError, match="not a plain file"), held(directory):
        pass
    assert precious.read_text() == "years of work"


def test_a_default_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "b.minified").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TorchReproError, match=r"is a link.*--out"):
        run_directory(None, beside=tmp_path / "b")


def test_a_link_in_the_working_directory_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "b.minified").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "blocked").write_text("a directory cannot be made in a file")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TorchReproError, match=r"is a link.*--out"):
        run_directory(None, beside=tmp_path / "blocked" / "b")


def test_a_finished_run_is_answered_again(directory: RunDirectory) -> None:
    settings = MinifySettings()
    result = finished(directory, settings)
    assert directory.finished(settings) == result
    assert directory.finished(replace(settings, jobs=7, time_limit=3.0)) == result


def test_other_passes_an_early_end_or_a_lost_script_are_not_finished(directory: RunDirectory) -> None:
    settings = MinifySettings()
    result = finished(directory, settings)
    assert directory.finished(replace(settings, skip=("values",))) is None
    assert directory.finished(replace(settings, explain=False)) is None
    write_json(directory.result, replace(result, stopped="the time is up").to_dict())
    assert directory.finished(settings) is None
    write_json(directory.result, result.to_dict())
    Path(result.script).unlink()
    assert directory.finished(settings) is None


def test_a_second_run_is_told_who_is_at_work(directory: RunDirectory) -> None:
    with (
        held(directory),
        pytest.raises(TorchReproError, match=rf"process {os.getpid()}\b.*--out"),
        held(directory),
    ):
        pass
    with held(directory):
        pass


def test_the_lock_of_a_dead_process_is_taken_over(directory: RunDirectory) -> None:
    (directory.path / "lock").write_text("4194999")  # beyond the highest number that Linux gives
    with held(directory) as descriptor:
        assert os.pread(descriptor, 32, 0) == str(os.getpid()).encode()
        assert not os.get_inheritable(descriptor)
        with open(directory.path / "lock") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_changed_bundle_has_another_identity_and_a_copy_has_the_same(tmp_path: Path) -> None:
    for name, text in (("a", "graph"), ("b", "graph"), ("c", "other graph")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "graph.py").write_text(text)
    first, copy, other = (Identity.of(tmp_path / name) for name in "abc")
    assert first.changed_since(copy) == ""
    assert first.changed_since(other) == "the bundle has changed"
    assert first.toolchain == other.toolchain
