"""Whose bundle it is: signed by its user, verified byte by byte, a stranger's in every other case."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import stat
import warnings
import zipfile
from pathlib import Path

import msgspec
import pytest
import torch

from tests.bundle.hostile import CORPUS
from torchrepro.bundle import provenance
from torchrepro.bundle.archive import seal_again, write_bundle_files
from torchrepro.bundle.load import load_bundle
from torchrepro.bundle.provenance import CONFIG_DIR, STRANGER, is_mark, is_own, mark_of, user_key
from torchrepro.bundle.read import file_digest
from torchrepro.nouns.errors import BundleError
from torchrepro.nouns.repro import Repro
from torchrepro.script.save_bundle import save_bundle

BOTH = pytest.mark.parametrize("name", ["bundle", "bundle.zip"])


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CONFIG_DIR, str(tmp_path / "config"))
    return tmp_path / "config"


def _repro() -> Repro:
    return Repro(torch.fx.symbolic_trace(lambda x: (torch.relu(x) + 1,)), (torch.arange(64.0),))


@BOTH
def test_a_bundle_is_the_users_own_wherever_it_is_moved(tmp_path: Path, name: str) -> None:
    bundle = save_bundle(_repro(), tmp_path / name)
    assert is_own(bundle)
    moved = tmp_path / f"moved-{name}"
    bundle.rename(moved)
    assert is_own(moved)


def test_zipping_and_unzipping_by_hand_keeps_it_own(tmp_path: Path) -> None:
    bundle = save_bundle(_repro(), tmp_path / "bundle")
    zipped = Path(shutil.make_archive(str(tmp_path / "again"), "zip", tmp_path, "bundle"))
    assert is_own(zipped)
    assert is_own(bundle)


@pytest.mark.parametrize("sign", [True, False])
def test_a_script_that_is_written_again_is_no_damage(tmp_path: Path, sign: bool) -> None:
    bundle = save_bundle(_repro(), tmp_path / "bundle")
    (bundle / "repro.py").write_text("print('the script that was verified')")
    with pytest.raises(BundleError, match=r"repro\.py of .* is damaged"):
        is_own(bundle)
    seal_again(bundle, sign=sign)
    assert is_own(bundle) is sign
    (bundle / "tensors.safetensors").write_bytes(b"x")
    with pytest.raises(BundleError, match="is damaged"):
        is_own(bundle)


def test_a_member_that_unpacks_to_more_than_is_read_is_not_hashed(tmp_path: Path) -> None:
    bundle = CORPUS["bomb_in_the_tensors"](tmp_path / "bundle", tmp_path / "canary")
    with pytest.raises(BundleError, match="larger than the limit"):
        is_own(bundle)


@BOTH
def test_another_user_is_a_stranger(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = save_bundle(_repro(), tmp_path / name)
    monkeypatch.setenv(CONFIG_DIR, str(tmp_path / "other"))
    assert not is_own(bundle)
    assert not (tmp_path / "other").exists(), "asking creates no key"
    assert user_key() is not None
    assert not is_own(bundle)


@pytest.mark.parametrize("member", ["manifest.json", "graph.py", "tensors.safetensors", "repro.py"])
def test_a_flipped_bit_is_found_in_the_users_and_in_a_strangers_bundle(
    tmp_path: Path, member: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = save_bundle(_repro(), tmp_path / "bundle")
    content = bytearray((bundle / member).read_bytes())
    content[-20] ^= 1
    (bundle / member).write_bytes(content)
    for config in ("config", "other"):
        monkeypatch.setenv(CONFIG_DIR, str(tmp_path / config))
        with pytest.raises(BundleError, match=rf"{member} of .* is damaged"):
            is_own(bundle)
        with pytest.raises(BundleError, match=rf"{member} of .* is damaged"):
            load_bundle(bundle)


def test_a_flipped_bit_is_found_in_the_tensors_of_a_zip(tmp_path: Path) -> None:
    bundle = save_bundle(_repro(), tmp_path / "bundle.zip")
    content = bytearray(bundle.read_bytes())
    at = content.index(torch.arange(64.0).numpy().tobytes())
    content[at + 5] ^= 16
    bundle.write_bytes(content)
    with pytest.raises(BundleError, match=r"tensors\.safetensors of .* is damaged"):
        load_bundle(bundle)


def test_a_missing_member_is_named(tmp_path: Path) -> None:
    bundle = save_bundle(_repro(), tmp_path / "bundle")
    (bundle / "repro.py").unlink()
    with pytest.raises(BundleError, match=r"repro\.py of .* is missing"):
        is_own(bundle)


@pytest.mark.parametrize("added", ["operators.py", "source.py", "values.pt"])
def test_what_was_added_later_is_not_the_users(tmp_path: Path, added: str) -> None:
    bundle = save_bundle(_repro(), tmp_path / "bundle")
    (bundle / added).write_text("print('hello')")
    assert not is_own(bundle)


def test_a_note_of_the_user_in_the_directory_does_not_matter(tmp_path: Path) -> None:
    bundle = save_bundle(_repro(), tmp_path / "bundle")
    (bundle / "README.txt").write_text("the bug of Monday")
    (bundle / "located").mkdir()
    (bundle / "located" / "result.json").write_text("{}")
    assert is_own(bundle)


def test_changing_the_table_breaks_the_signature(tmp_path: Path) -> None:
    bundle = save_bundle(_repro(), tmp_path / "bundle")
    (bundle / "graph.py").write_text("changed")
    table = bundle / "provenance.json"
    digest = file_digest(bundle / "graph.py")
    former = msgspec.json.decode(table.read_bytes(), type=provenance.Provenance)
    forged = provenance.Provenance({**former.members, "graph.py": digest}, former.signature)
    table.write_bytes(msgspec.json.encode(forged))
    assert not is_own(bundle)


@pytest.mark.parametrize("signature", ["\u0086", "", "0" * 64])
def test_a_signature_of_other_characters_is_none(tmp_path: Path, signature: str) -> None:
    bundle = save_bundle(_repro(), tmp_path / "bundle")
    table = bundle / "provenance.json"
    former = msgspec.json.decode(table.read_bytes(), type=provenance.Provenance)
    table.write_bytes(msgspec.json.encode(provenance.Provenance(former.members, signature)))
    assert not is_own(bundle)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"members": 3}', b'{"members": {"../x": "0"}}', b"[" * 100_000, b"\xff"]
)
def test_a_damaged_table_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    bundle = save_bundle(_repro(), tmp_path / "bundle")
    (bundle / "provenance.json").write_bytes(content)
    with pytest.raises(BundleError):
        is_own(bundle)


def test_bundles_without_provenance_open_as_a_strangers(tmp_path: Path) -> None:
    bundle = save_bundle(_repro(), tmp_path / "bundle")
    (bundle / "provenance.json").unlink()
    assert not is_own(bundle)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_bundle(bundle).stranger


def test_what_is_made_of_a_strangers_bundle_is_a_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = save_bundle(_repro(), tmp_path / "bundle")
    monkeypatch.setenv(CONFIG_DIR, str(tmp_path / "other"))
    assert not is_own(save_bundle(load_bundle(bundle), tmp_path / "derived"))
    assert is_own(save_bundle(_repro(), tmp_path / "own")), "the user's own work in the same process"
    monkeypatch.setenv(STRANGER, "1")
    assert not is_own(save_bundle(_repro(), tmp_path / "written_for_a_stranger"))


def test_the_key_is_secret(config: Path) -> None:
    assert len(user_key() or b"") == 32
    assert stat.S_IMODE((config / "key").stat().st_mode) == 0o600
    assert [path.name for path in config.iterdir()] == ["key"]


def _asked(number: int) -> bytes | None:
    return user_key()


def test_processes_that_race_agree_on_one_key(config: Path) -> None:
    with multiprocessing.get_context("fork").Pool(8) as pool:
        keys = pool.map(_asked, range(64), chunksize=1)
    assert set(keys) == {(config / "key").read_bytes()}


@pytest.mark.parametrize("mode", [0o644, 0o660])
def test_a_key_that_others_may_read_is_not_used(config: Path, mode: int) -> None:
    user_key()
    (config / "key").chmod(mode)
    with pytest.warns(UserWarning, match="others may read it"):
        assert user_key() is None


def test_without_a_place_for_the_key_bundles_are_a_strangers_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(CONFIG_DIR, str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="count as a stranger's"):
        bundle = save_bundle(_repro(), tmp_path / "bundle")
    assert not is_own(bundle)
    assert load_bundle(bundle).ops == 2


@pytest.mark.parametrize("kind", ["link", "directory", "fifo", "short", "long"])
def test_something_else_than_a_key_is_not_used(config: Path, kind: str) -> None:
    config.mkdir()
    key = config / "key"
    if kind == "link":
        (config / "elsewhere").write_bytes(bytes(32))
        key.symlink_to(config / "elsewhere")
    elif kind == "directory":
        key.mkdir()
    elif kind == "fifo":
        os.mkfifo(key, 0o600)
    else:
        key.write_bytes(bytes(31 if kind == "short" else 33))
        key.chmod(0o600)
    with pytest.warns(UserWarning, match="count as a stranger's"):
        assert user_key() is None


def test_bundles_written_ahead_of_a_call_are_not_hashed(tmp_path: Path) -> None:
    written = write_bundle_files(tmp_path / "bundle", {"manifest.json": b"{}"}, seal=False)
    assert [path.name for path in written.iterdir()] == ["manifest.json"]


def test_marks_depend_on_purpose_facts_and_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = mark_of("run directory", "a", "b")
    assert is_mark(mark, "run directory", "a", "b")
    assert not is_mark(mark, "run directory", "ab")
    assert not is_mark(mark, "bundle", "a", "b")
    assert not is_mark("", "run directory", "a", "b")
    monkeypatch.setenv(CONFIG_DIR, str(tmp_path / "other"))
    assert not is_mark(mark, "run directory", "a", "b")


def test_provenance_is_part_of_a_zip(tmp_path: Path) -> None:
    bundle = save_bundle(_repro(), tmp_path / "bundle.zip")
    assert "provenance.json" in zipfile.ZipFile(bundle).namelist()
