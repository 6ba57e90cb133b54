"""The file of storages: plain safetensors, mapped lazily and privately, and damage is one clear line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchrepro.bundle.storage_file import open_storages, write_storages
from torchrepro.nouns.errors import BundleError


def noise(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def storages() -> dict[str, torch.Tensor]:
    return {
        "odd": noise(13),
        "w[0].é": noise(4096, 1),
        "empty": noise(0),
        "b": noise(64, 2),
        "a": noise(7, 3),
    }


@pytest.fixture
def file(tmp_path: Path, storages: dict[str, torch.Tensor]) -> Path:
    write_storages(tmp_path / "t.safetensors", storages)
    return tmp_path / "t.safetensors"


def test_the_safetensors_package_reads_the_file(file: Path, storages: dict[str, torch.Tensor]) -> None:
    loaded = safetensors.torch.load_file(file)
    assert loaded.keys() == storages.keys()
    assert all(loaded[name].equal(storages[name]) for name in storages)


def test_what_the_safetensors_package_writes_is_read(tmp_path: Path) -> None:
    wanted = {"x": noise(100), "y": noise(3)}
    safetensors.torch.save_file(wanted, tmp_path / "t", metadata={"made": "elsewhere"})
    loaded = open_storages(tmp_path / "t")
    assert sorted(loaded) == ["x", "y"]
    assert all(loaded[name].equal(wanted[name]) for name in wanted)


def test_no_storages_at_all_is_a_file_too(tmp_path: Path) -> None:
    write_storages(tmp_path / "t", {})
    assert len(open_storages(tmp_path / "t")) == 0
    assert safetensors.torch.load_file(tmp_path / "t") == {}


def test_storages_of_whole_cache_lines_are_aligned(file: Path) -> None:
    loaded = open_storages(file)
    assert loaded["b"].data_ptr() % 64 == 0
    assert loaded["w[0].é"].data_ptr() % 64 == 0


def test_loaded_memory_is_private(file: Path, storages: dict[str, torch.Tensor]) -> None:
    before = file.read_bytes()
    open_storages(file)["b"].fill_(0)
    assert file.read_bytes() == before
    assert open_storages(file)["b"].equal(storages["b"])


def test_loaded_memory_outlives_the_file_and_its_reader(
    file: Path, storages: dict[str, torch.Tensor]
) -> None:
    loaded = open_storages(file)["w[0].é"]
    file.unlink()
    assert loaded.equal(storages["w[0].é"])


def test_a_part_of_a_larger_file_can_be_opened(file: Path, storages: dict[str, torch.Tensor]) -> None:
    inside = file.with_name("outer")
    inside.write_bytes(b"x" * 5000 + file.read_bytes() + b"y" * 100)
    loaded = open_storages(inside, 5000, file.stat().st_size)
    assert all(loaded[name].equal(storages[name]) for name in storages)


def test_nothing_is_overwritten(file: Path) -> None:
    with pytest.raises(FileExistsError):
        write_storages(file, {})


def test_a_storage_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(BundleError, match="'nobody' is not in the tensors"):
        open_storages(file)["nobody"]


def test_a_file_that_does_not_exist_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"cannot read .*nothing: No such file"):
        open_storages(tmp_path / "nothing")


def with_header(change: Callable[[dict], object]) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        changed = change(header)
        encoded = json.dumps(header if changed is None else changed).encode()
        return len(encoded).to_bytes(8, "little") + encoded + content[8 + size :]

    return damage


def offsets(name: str, start: int, stop: int) -> Callable[[bytes], bytes]:
    return with_header(lambda header: header[name].update(data_offsets=[start, stop], shape=[stop - start]))


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "zero length": lambda content: b"",
    "five bytes": lambda content: content[:5],
    "cut in the header": lambda content: content[:40],
    "cut in the data": lambda content: content[:-1],
    "a byte too many": lambda content: content + b"!",
    "huge header length": lambda content: b"\xff" * 8 + content[8:],
    "short header length": lambda content: (3).to_bytes(8, "little") + content[8:],
    "not JSON": lambda content: content[:8] + b"X" + content[9:],
    "not UTF-8": lambda content: content[:8] + b"\xff\xfe" + content[10:],
    "a list": with_header(lambda header: [1, 2]),
    "a number as record": with_header(lambda header: {"a": 1}),
    "deep nesting": lambda content: (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "overlap": offsets("b", 10, 74),
    "out of range": offsets("b", 0, 10**12),
    "negative": offsets("b", -64, 0),
    "backwards": offsets("b", 64, 0),
    "wrong dtype": with_header(lambda header: header["b"].update(dtype="F32")),
    "wrong shape": with_header(lambda header: header["b"].update(shape=[8, 8])),
    "a hole": with_header(lambda header: header.pop("b") and None),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_one_clear_line(file: Path, damage: str) -> None:
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    with pytest.raises(BundleError, match="truncated or damaged") as caught:
        open_storages(file)
    assert "\n" not in str(caught.value)
    assert caught.value.next_step


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 4500), st.integers(0, 255), st.integers(0, 4500))
def test_random_damage_never_kills_the_process(
    tmp_path_factory: pytest.TempPathFactory, position: int, value: int, cut: int
) -> None:
    """Only another exception, or a crash of the process, fails it."""
    path = tmp_path_factory.mktemp("damage") / "t"
    write_storages(path, {"a": noise(4096), "b": noise(30)})
    content = bytearray(path.read_bytes())
    content[position % len(content)] = value
    path.write_bytes(content[: max(0, len(content) - cut)] if cut % 2 else content)
    try:
        loaded = open_storages(path)
        for name in loaded:
            loaded[name].sum()
    except BundleError:
        pass
