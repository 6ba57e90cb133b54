"""Writing a bundle: complete under its name or not there at all, and nothing is ever overwritten."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import zipfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from torchrepro.bundle.archive import new_run_id, write_bundle_files
from torchrepro.bundle.read import open_bundle_files
from torchrepro.bundle.storage_file import open_storages, write_storages
from torchrepro.nouns.errors import BundleError

FILES = {"manifest.json": b'{"format": 1}', "graph.py": b"x = 1\n" * 1000, "nested/deep.txt": b"deep"}
BOTH = pytest.mark.parametrize("name", ["bundle", "bundle.zip"])


def leftovers(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def storages() -> dict[str, torch.Tensor]:
    return {"x": torch.arange(256, dtype=torch.uint8).repeat(64), "y": torch.ones(3, dtype=torch.uint8)}


@BOTH
def test_what_was_written_is_read_again_from_any_directory(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {**FILES, "tensors.safetensors": lambda path: write_storages(path, storages())}
    written = write_bundle_files(Path(name), files)
    assert written == tmp_path / name
    assert leftovers(tmp_path) == [name]
    with open_bundle_files(name) as bundle:
        monkeypatch.chdir("/")
        assert set(bundle.names) == {*files, "provenance.json"}
        assert {each: bundle.read_bytes(each) for each in FILES} == FILES
        mapped = open_storages(*bundle.span("tensors.safetensors"))
        assert "graph.py" in bundle
    assert all(mapped[key].equal(value) for key, value in storages().items())
    assert mapped["x"].data_ptr() % 64 == 0


def test_the_name_says_which_form_is_written(tmp_path: Path) -> None:
    assert zipfile.is_zipfile(write_bundle_files(tmp_path / "a.zip", FILES))
    assert write_bundle_files(tmp_path / "b", FILES).is_dir()


def test_the_same_files_give_the_same_zip(tmp_path: Path) -> None:
    first, second = (write_bundle_files(tmp_path / name, FILES) for name in ("a.zip", "b.zip"))
    assert first.read_bytes() == second.read_bytes()


def test_text_is_compressed_and_tensors_are_not(tmp_path: Path) -> None:
    path = write_bundle_files(tmp_path / "a.zip", {**FILES, "tensors.safetensors": b"0" * 5000})
    with zipfile.ZipFile(path) as opened:
        assert opened.testzip() is None
        sizes = {info.filename: (info.compress_size, info.file_size) for info in opened.infolist()}
    assert sizes["tensors.safetensors"] == (5000, 5000)
    assert sizes["graph.py"][0] < sizes["graph.py"][1] / 10


@BOTH
@pytest.mark.parametrize("what", ["file", "empty directory", "full directory", "dangling link"])
def test_whatever_has_the_name_already_is_left_alone(tmp_path: Path, name: str, what: str) -> None:
    target = tmp_path / name
    match what:
        case "file":
            target.write_bytes(b"mine")
        case "empty directory":
            target.mkdir()
        case "full directory":
            target.mkdir()
            (target / "mine").write_bytes(b"mine")
        case "dangling link":
            target.symlink_to(tmp_path / "nowhere")
    before = (os.lstat(target), [each.read_bytes() for each in target.glob("*")] if target.is_dir() else None)
    with pytest.raises(BundleError, match="exists already; choose another name, for example bundle-2"):
        write_bundle_files(target, FILES)
    after = (os.lstat(target), [each.read_bytes() for each in target.glob("*")] if target.is_dir() else None)
    assert (before[0].st_ino, before[1]) == (after[0].st_ino, after[1])
    assert leftovers(tmp_path) == [name]


@BOTH
@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_name_taken_while_writing_is_left_alone(
    tmp_path: Path, name: str, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", refuse)

    def somebody_is_faster(path: Path) -> None:
        path.write_bytes(b"slow")
        write_bundle_files(tmp_path / name, {"manifest.json": b"fast"})

    with pytest.raises(BundleError, match="exists already"):
        write_bundle_files(tmp_path / name, {"manifest.json": somebody_is_faster})
    with open_bundle_files(tmp_path / name) as bundle:
        assert bundle.read_bytes("manifest.json") == b"fast"
    assert leftovers(tmp_path) == [name]


@BOTH
def test_of_many_writers_of_one_name_exactly_one_wins(tmp_path: Path, name: str) -> None:
    barrier = threading.Barrier(4)

    def write(index: int) -> int | None:
        barrier.wait()
        try:
            write_bundle_files(tmp_path / name, {"manifest.json": b"%d" % index})
        except BundleError:
            return None
        return index

    with ThreadPoolExecutor(4) as pool:
        winners = [index for index in pool.map(write, range(4)) if index is not None]
    with open_bundle_files(tmp_path / name) as bundle:
        assert [bundle.read_bytes("manifest.json")] == [b"%d" % index for index in winners]
    assert leftovers(tmp_path) == [name]


@BOTH
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError, MemoryError])
def test_an_interruption_leaves_nothing_behind(tmp_path: Path, name: str, error: type[BaseException]) -> None:
    def interrupted(path: Path) -> None:
        path.write_bytes(b"half")
        raise error

    with pytest.raises(error):
        write_bundle_files(tmp_path / name, {**FILES, "tensors.safetensors": interrupted})
    assert leftovers(tmp_path) == []


@BOTH
@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EROFS, "that you may write to"),
        (errno.EIO, "choose another"),
    ],
)
def test_a_failing_disk_is_one_clear_line(tmp_path: Path, name: str, number: int, advice: str) -> None:
    def failing(path: Path) -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(BundleError, match=advice) as caught:
        write_bundle_files(tmp_path / name, {**FILES, "tensors.safetensors": failing})
    assert os.strerror(number) in caught.value.fact
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("member", ["../x", "/x", "a/../../x", "a//b", "", ".", "a\\b", "c:x", "a/", "a\0b"])
def test_names_that_lead_out_of_the_bundle_are_not_written(tmp_path: Path, member: str) -> None:
    with pytest.raises(BundleError, match="not a name that a file of a bundle may have"):
        write_bundle_files(tmp_path / "b", {"manifest.json": b"", member: b"x"})
    assert leftovers(tmp_path) == []


def as_somebody_without_rights(directory: str) -> str:
    if os.geteuid() == 0:
        os.setegid(65534)
        os.seteuid(65534)
    try:
        write_bundle_files(Path(directory, "bundle"), FILES)
    except BundleError as error:
        return str(error)
    return "written"


@pytest.mark.slow
def test_a_directory_that_cannot_be_written_is_one_clear_line() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o555)
        with ProcessPoolExecutor(1, get_context("fork")) as pool:
            message = pool.submit(as_somebody_without_rights, directory).result()
        assert "Permission denied; choose a directory that you may write to" in message
        assert os.listdir(directory) == []


def some_run_ids(count: int) -> list[str]:
    return [new_run_id() for _ in range(count)]


def test_run_ids_of_threads_never_collide_and_sort_by_time() -> None:
    ids = some_run_ids(5000)
    assert ids == sorted(ids)
    with ThreadPoolExecutor(4) as pool:
        ids += [each for part in pool.map(some_run_ids, [2000] * 4) for each in part]
    assert len(set(ids)) == 13_000


@pytest.mark.slow
def test_run_ids_of_processes_never_collide() -> None:
    with ProcessPoolExecutor(4, get_context("fork")) as pool:
        ids = [each for part in pool.map(some_run_ids, [2000] * 8) for each in part]
    assert len(set(ids)) == 16_000
