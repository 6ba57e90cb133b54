"""Opening what somebody else sent: every way in which it can be no bundle is one clear line."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from torchrepro.bundle.archive import write_bundle_files
from torchrepro.bundle.read import open_bundle_files
from torchrepro.bundle.storage_file import open_storages
from torchrepro.nouns.errors import BundleError

MANIFEST = ("manifest.json", b"{}")
SAFETENSORS = safetensors.torch.save({"x": torch.arange(200, dtype=torch.uint8)})


def make_zip(
    path: Path, *members: tuple[str | zipfile.ZipInfo, bytes], compression: int = zipfile.ZIP_DEFLATED
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


def symlink_member(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def refuses(path: Path, match: str) -> None:
    with pytest.raises(BundleError, match=match) as caught:
        open_bundle_files(path)
    assert "\n" not in str(caught.value)
    assert caught.value.next_step


def as_file(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is an empty directory"),
        (lambda path: (path.mkdir(), (path / "x").touch()), "not a bundle: it has no manifest.json"),
        (as_file(b""), "is empty: it is no bundle"),
        (as_file(b"just text"), "neither a directory nor a whole zip"),
        (lambda path: os.mkfifo(path), "neither a directory nor a file"),
        (lambda path: make_zip(path), "not a bundle: it has no manifest.json"),
        (lambda path: make_zip(path, ("a/x", b""), ("b/manifest.json", b"")), "it has no manifest.json"),
    ],
    ids=["missing", "empty dir", "no manifest", "empty file", "text", "pipe", "empty zip", "two roots"],
)
def test_what_is_no_bundle_is_one_clear_line(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path / "thing")
    refuses(tmp_path / "thing", message)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "..", "a\\..\\x", "C:x"])
def test_a_zip_with_names_that_lead_out_is_refused(tmp_path: Path, name: str) -> None:
    refuses(
        make_zip(tmp_path / "b.zip", MANIFEST, (name, b"x")), "not a name that a file of a bundle may have"
    )


def test_a_zip_with_a_link_is_refused(tmp_path: Path) -> None:
    refuses(
        make_zip(tmp_path / "b.zip", MANIFEST, (symlink_member("graph.py"), b"/etc/passwd")), "symbolic link"
    )


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_zip_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    refuses(make_zip(tmp_path / "b.zip", MANIFEST, MANIFEST), "there twice")


def test_unusual_compression_is_refused(tmp_path: Path) -> None:
    refuses(make_zip(tmp_path / "b.zip", MANIFEST, compression=zipfile.ZIP_LZMA), "compressed in a way")


def test_a_bomb_is_stopped_at_the_limit(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "b.zip", MANIFEST, ("graph.py", b"\0" * (20 << 20)))
    assert path.stat().st_size < 100_000
    with open_bundle_files(path) as bundle:
        with pytest.raises(BundleError, match="larger than the limit"):
            bundle.read_bytes("graph.py", limit=1 << 20)
        with pytest.raises(BundleError, match="larger than the limit"):
            bundle.span("graph.py", limit=1 << 20)
        assert len(bundle.read_bytes("graph.py", limit=20 << 20)) == 20 << 20


def test_a_zip_of_the_directory_itself_is_read_too(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "b.zip", ("bundle/manifest.json", b"{}"), ("bundle/graph.py", b"x"))
    with open_bundle_files(path) as bundle:
        assert bundle.names == ("graph.py", "manifest.json")
        assert bundle.read_bytes("graph.py") == b"x"


def test_compressed_tensors_are_unpacked_first(tmp_path: Path) -> None:
    path = make_zip(tmp_path / "b.zip", MANIFEST, ("tensors.safetensors", SAFETENSORS))
    with open_bundle_files(path) as bundle:
        file, start, length = bundle.span("tensors.safetensors")
        assert open_storages(file, start, length)["x"].numel() == 200
    assert not file.exists()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for name in ("b", "b.zip"):
        with open_bundle_files(write_bundle_files(tmp_path / name, {"manifest.json": b"{}"})) as bundle:
            for read in (bundle.read_bytes, bundle.span):
                with pytest.raises(BundleError, match=r"has no graph\.py"):
                    read("graph.py")


@pytest.mark.parametrize("how", ["link", "linked directory", "pipe"])
def test_links_and_pipes_in_a_directory_are_not_followed(tmp_path: Path, how: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_bytes(b"secret")
    bundle_path = write_bundle_files(tmp_path / "b", {"manifest.json": b"{}"})
    name = "graph.py"
    match how:
        case "link":
            (bundle_path / name).symlink_to(tmp_path / "secret" / "key")
        case "linked directory":
            (bundle_path / "folder").symlink_to(tmp_path / "secret")
            name = "folder/key"
        case "pipe":
            os.mkfifo(bundle_path / name)
    with open_bundle_files(bundle_path) as bundle:
        with pytest.raises(BundleError, match=r"link or device|has no"):
            bundle.read_bytes(name)
        with pytest.raises(BundleError, match=r"link or device|has no"):
            bundle.span(name)
        with pytest.raises(BundleError, match="not a name"):
            bundle.read_bytes("../secret/key")


def test_what_a_killed_writer_left_is_never_taken_for_a_bundle(tmp_path: Path) -> None:
    partial = tmp_path / ".bundle.20260101-000000-000000-p1-00000000.partial"
    (partial / "members").mkdir(parents=True)
    (partial / "members" / "manifest.json").write_bytes(b"{}")
    (partial / "manifest.json").write_bytes(b"{}")
    refuses(partial, "interrupted write")
    refuses(tmp_path, "has no manifest.json")


@settings(max_examples=150, deadline=None)
@example(position=471, value=0, cut=0)  # a name that begins with a NUL
@given(st.integers(0, 2000), st.integers(0, 255), st.integers(0, 2000))
def test_a_randomly_damaged_zip_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int, cut: int
) -> None:
    """Only another exception, or a crash of the process, fails it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", b'{"format": 1}' * 20)
        archive.writestr(zipfile.ZipInfo("tensors.safetensors"), SAFETENSORS)
    content = bytearray(buffer.getvalue())
    content[position % len(content)] = value
    path = tmp_path_factory.mktemp("damage") / "b.zip"
    path.write_bytes(content[: len(content) - cut % len(content)] if cut % 2 else content)
    with contextlib.suppress(BundleError), open_bundle_files(path) as bundle:
        bundle.read_bytes("manifest.json")
        open_storages(*bundle.span("tensors.safetensors"))["x"].sum()
        bundle.read_bytes("tensors.safetensors")
