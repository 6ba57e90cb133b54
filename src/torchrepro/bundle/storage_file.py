"""`tensors.safetensors`: storages as bytes in a file that the `safetensors` package reads too.

The package itself is not used: it can neither map a member of a zip nor write straight from memory, and it
orders tensors by name. The format allows no gaps between tensors, so they cannot all be aligned: storages
whose size is a multiple of 64 come first and are aligned, which in practice is all the large ones; the others
are copied when loaded.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import torch

from torchrepro.nouns.errors import BundleError, damaged
from torchrepro.torch_api.tensors import plain_torch

ALIGNMENT = 64
"""Cuts fall on torch's own alignment, so that no view becomes less aligned than it was."""


_ELEMENTS_PER_BYTE = {torch.quint4x2: 2, torch.quint2x4: 4}
_MAX_HEADER = 100_000_000
"""The limit of the `safetensors` package."""
_PIECE = 1 << 30
"""Linux writes at most 2 GiB in one call."""
_RUN = 1024
"""Linux writes at most so many pieces of memory in one call."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class _Record(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[Count]
    data_offsets: tuple[Count, Count]


def byte_span(size: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype) -> tuple[int, int]:
    """Return first and last-plus-one byte that a strided view touches; equal where it has no elements."""
    itemsize = dtype.itemsize
    if 0 in size:
        return offset * itemsize, offset * itemsize
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True)) + 1
    if dtype in _ELEMENTS_PER_BYTE:
        # torch packs these row by row in a contiguous tensor and has no views of them.
        return 0, -(-math.prod(size) // _ELEMENTS_PER_BYTE[dtype])
    return offset * itemsize, last * itemsize


def human_size(nbytes: int) -> str:
    """Write a number of bytes for a person: 1536 -> '1.5 KiB'."""
    amount, units = float(nbytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.0f} bytes" if units[0] == "bytes" else f"{amount:.1f} {units[0]}"


def write_storages(path: Path, storages: Mapping[str, torch.Tensor]) -> None:
    """Write flat uint8 CPU tensors to a new file, straight from their memory."""
    header: dict[str, _Record] = {}
    # Stable: by name within the aligned ones and within the rest.
    names = sorted(storages, key=lambda name: (storages[name].numel() % ALIGNMENT != 0, name))
    end = 0
    for name in names:
        start, end = end, end + storages[name].numel()
        header[name] = _Record("U8", (end - start,), (start, end))
    encoded = msgspec.json.encode(dict(sorted(header.items())))
    encoded += b" " * (-(8 + len(encoded)) % ALIGNMENT)
    with plain_torch(), open(path, "xb", buffering=0) as file:
        _write_at(file.fileno(), 0, memoryview(len(encoded).to_bytes(8, "little") + encoded))
        for name in names:
            if storages[name].numel():
                offset = 8 + len(encoded) + header[name].data_offsets[0]
                _write_at(file.fileno(), offset, memory_of(storages[name]))


def memory_of(flat: torch.Tensor) -> memoryview:
    """Return the memory of a flat uint8 CPU tensor, which must be alive as long as the view is used.

    `Tensor.numpy` would forbid the owner of the storage to resize it, as FSDP does to free its parameters.
    """
    return memoryview((ctypes.c_ubyte * flat.numel()).from_address(flat.data_ptr())).cast("B")


def _write_at(descriptor: int, offset: int, view: memoryview) -> None:
    while view:
        done = os.pwrite(descriptor, view[:_PIECE], offset)
        offset, view = offset + done, view[done:]


class StorageRewriter:
    """Writes new bytes over the storages of a file, straight from memory. A full disk is an error, not a
    signal: the file is written, not mapped.
    """

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            self._records, self._data_start = _read_header(file, os.fstat(file.fileno()).st_size)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def write(self, storages: Iterable[tuple[str, int, int]]) -> None:
        """Write storages, each given by its name, its address in memory and its length, which may not differ.

        Those next to one another in the file are written with one system call.
        """
        run: list[memoryview] = []
        begin = end = 0
        for start, address, length in sorted(self._placed(storages)):
            if start != end or len(run) == _RUN:
                self._write_run(begin, run)
                run, begin = [], start
            run.append(memoryview((ctypes.c_char * length).from_address(address)).cast("B"))
            end = start + length
        self._write_run(begin, run)

    def _placed(self, storages: Iterable[tuple[str, int, int]]) -> Iterator[tuple[int, int, int]]:
        for name, address, length in storages:
            start, stop = self._records[name].data_offsets
            if stop - start != length:
                raise ValueError(f"{name} has {stop - start} bytes, not {length}")
            if length:
                yield start, address, length

    def _write_run(self, start: int, run: list[memoryview]) -> None:
        offset = self._data_start + start
        while run:
            done = os.pwritev(self._descriptor, run, offset)
            offset += done
            while run and done >= len(run[0]):
                done -= len(run.pop(0))
            if run:
                run[0] = run[0][done:]

    def close(self) -> None:
        os.close(self._descriptor)


class Storages(dict[str, torch.Tensor]):
    """The storages of a file by name: read when they are used, private and writable.

    The file is mapped copy-on-write: a tensor may be changed, the file never is. Such a tensor cannot be
    grown by `resize_`; its clone can.
    """

    def __missing__(self, name: str) -> torch.Tensor:
        raise damaged(f"the storage {name!r} is not in the tensors of the bundle")


def open_storages(path: Path, start: int = 0, length: int | None = None) -> Storages:
    """Open a file of storages, or the part of a file (a stored zip member) that is one.

    The header is checked against the size of the file first: reading a mapping beyond the end of its file
    would kill the process.
    """
    try:
        with open(path, "rb") as file:
            available = os.fstat(file.fileno()).st_size - start
            length = available if length is None else length
            if length > available:
                raise _damaged(path, f"{human_size(available)} of {human_size(length)} are there")
            file.seek(start)
            records, header_end = _read_header(file, length)
            # Mappings start at a page; the bytes of the zip before it are mapped with it and never touched.
            page = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            mapped = mmap.mmap(file.fileno(), start + length - page, access=mmap.ACCESS_COPY, offset=page)
    except OSError as error:
        raise BundleError(
            f"cannot read {path}: {error.strerror or error}", next_step="check the path and its permissions"
        ) from error
    data_start, storages = start - page + header_end, Storages()
    with plain_torch():
        for name, record in records.items():
            first, stop = record.data_offsets
            storages[name] = torch.empty(0, dtype=torch.uint8)
            if first < stop:  # `frombuffer` refuses an empty range
                storages[name] = torch.frombuffer(
                    mapped, dtype=torch.uint8, offset=data_start + first, count=stop - first
                )
    return storages


def spans_of(path: Path) -> list[tuple[int, int]]:
    """Return the first and last-plus-one byte of each storage in a file."""
    with open(path, "rb") as file:
        records, data_start = _read_header(file, os.fstat(file.fileno()).st_size)
    spans = [record.data_offsets for record in records.values()]
    return [(data_start + first, data_start + stop) for first, stop in spans]


def _read_header(file: BinaryIO, length: int) -> tuple[dict[str, _Record], int]:
    """Return the records of a header that describes every byte once, and where the data begins after it."""
    path, prefix = Path(file.name), file.read(8)
    if len(prefix) < 8 or length < 8:
        raise _damaged(path, f"it has only {length} bytes")
    size = int.from_bytes(prefix, "little")
    if size > _MAX_HEADER or 8 + size > length:
        raise _damaged(path, f"its header claims {human_size(size)} of {human_size(length)}")
    try:
        raw = msgspec.json.decode(file.read(size))
        metadata_left_out = {name: record for name, record in raw.items() if name != "__metadata__"}
        records = msgspec.convert(metadata_left_out, dict[str, _Record])
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError, RecursionError) as error:
        raise _damaged(path, "its header is not the JSON of a safetensors file") from error
    end = 0
    for name, record in sorted(records.items(), key=lambda item: item[1].data_offsets):
        start, stop = record.data_offsets
        if record.dtype != "U8" or stop - start != record.shape[0]:
            raise _damaged(path, f"the storage {name!r} is not a row of bytes")
        if start != end:
            raise _damaged(path, f"the storage {name!r} starts at byte {start} instead of {end}")
        end = stop
    if 8 + size + end != length:
        raise _damaged(path, f"it has {length} bytes where its header describes {8 + size + end}")
    return records, 8 + size


def _damaged(path: Path, what: str) -> BundleError:
    return damaged(f"{path} is truncated or damaged: {what}")
