"""Writing and loading the tensors of a bundle, against `torch.save` and `torch.load` of the same tensors.

Every loaded byte is read (a sum over each tensor), so that lazy loading hides nothing.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.console import Console
from rich.table import Table

from torchrepro.bundle.manifest import ValueEntry
from torchrepro.bundle.storage_file import open_storages, write_storages
from torchrepro.bundle.values import pack_values, unpack_values

ROUNDS = 5
MIB = 1 << 20


def mixed_tensors(total_mib: int = 256) -> dict[str, torch.Tensor]:
    """Large weights, transposed and shared ones, many small biases of odd sizes."""
    generator = torch.Generator().manual_seed(0)
    half = total_mib // 2
    values = {
        f"weight{index}": torch.randn(16 * MIB // 4, generator=generator).view(2048, -1)
        for index in range(half // 16)
    }
    values |= {
        f"half{index}": torch.randn(4 * MIB // 2, generator=generator).to(torch.bfloat16)
        for index in range(half // 8)
    }
    values |= {
        f"ids{index}": torch.randint(0, 50_000, (8 * MIB // 8,), generator=generator)
        for index in range(half // 16)
    }
    values |= {f"bias{index}": torch.randn(771, generator=generator) for index in range(300)}
    values["transposed"] = values["weight0"].t()
    values["row"] = values["weight0"][7]
    return values


def touch(values: dict[str, torch.Tensor]) -> None:
    for tensor in values.values():
        # As 64-bit integers where possible: their sum runs at the speed of the memory.
        whole_words = tensor.is_contiguous() and tensor.numel() * tensor.itemsize % 8 == 0
        (tensor.view(-1).view(torch.int64) if whole_words else tensor).sum()


def synced(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def rows() -> list[dict[str, Any]]:
    """One row per way of writing or loading: median seconds, and the ratio to torch's default."""
    values = mixed_tensors()
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Path(folder, "tensors.safetensors"), Path(folder, "tensors.pt")
        manifest = Path(folder, "manifest.json")

        def write_ours() -> None:
            packed = pack_values(values)
            manifest.write_bytes(msgspec.json.encode(packed.entries))
            write_storages(ours, packed.storages)

        def load_ours() -> None:
            entries = msgspec.json.decode(manifest.read_bytes(), type=dict[str, ValueEntry])
            touch(unpack_values(entries, open_storages(ours).__getitem__))

        def write_ours_synced() -> None:
            write_ours()
            synced(ours)

        def write_theirs_synced() -> None:
            torch.save(values, theirs)
            synced(theirs)

        def clear() -> None:
            ours.unlink(missing_ok=True)
            theirs.unlink(missing_ok=True)

        write = _interleaved(
            {
                "torch.save": lambda: torch.save(values, theirs),
                "torchrepro": write_ours,
                "torch.save, fsync": write_theirs_synced,
                "torchrepro, fsync": write_ours_synced,
            },
            before=clear,
        )
        clear()
        write_ours()
        torch.save(values, theirs)
        load = _interleaved(
            {
                "torch.load": lambda: touch(torch.load(theirs)),
                "torch.load(mmap=True)": lambda: touch(torch.load(theirs, mmap=True)),
                "torch.load(weights_only=False)": lambda: touch(torch.load(theirs, weights_only=False)),
                "torchrepro": load_ours,
            }
        )
    fsync_baseline = {
        "": "torch.save",
        "torch.save, fsync": "torch.save, fsync",
        "torchrepro, fsync": "torch.save, fsync",
    }
    return [
        *_table("write", write, fsync_baseline),
        *_table("load", load, {"": "torch.load"}),
    ]


def _interleaved(
    ways: dict[str, Callable[[], object]], before: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Median seconds of each way; the ways take turns, so that a slow minute hits all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(ROUNDS + 1):
        for name, way in ways.items():
            before()
            start = time.perf_counter()
            way()
            if round_:  # the first round warms the page cache
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def _table(what: str, seconds: dict[str, float], baseline: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "what": what,
            "how": how,
            "seconds": taken,
            "ratio": taken / seconds[baseline.get(how, baseline[""])],
        }
        for how, taken in seconds.items()
    ]


def main() -> None:
    table = Table("what", "how", "seconds", "ratio", title="256 MiB of mixed tensors")
    for row in rows():
        table.add_row(row["what"], row["how"], f"{row['seconds']:.3f}", f"{row['ratio']:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
