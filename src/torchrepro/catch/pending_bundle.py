"""A bundle on disk before the call it describes: what is left when the process dies inside it.

The first call writes all of it. Later calls with inputs of the same layout only write the bytes over, at the
speed of memory; they are safe in the page cache the moment the write returns, whatever happens to the process
then.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torchrepro.bundle.archive import write_bundle_files
from torchrepro.bundle.load import load_bundle, trust_own
from torchrepro.bundle.read import TENSORS, read_manifest
from torchrepro.bundle.storage_file import StorageRewriter
from torchrepro.bundle.values import PackedValues, pack_values
from torchrepro.catch.crash_record import FlightRecord
from torchrepro.catch.rank_watch import announce_unfinished
from torchrepro.catch.session import Session
from torchrepro.catch.snapshot import Snapshot
from torchrepro.catch.summary import UNFINISHED
from torchrepro.graph_text.printer import GraphText
from torchrepro.nouns.repro import Repro
from torchrepro.script.save_bundle import manifest_of, members_of, values_of
from torchrepro.user_code.graph_source import write_with_source

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class PendingBundle:
    """The unfinished bundle of one graph, brought up to date before each call."""

    def __init__(self, session: Session, snapshot: Snapshot) -> None:
        self._session = session
        self._snapshot = snapshot
        self._pid = os.getpid()
        self._repro: Repro | None = None
        self._written: GraphText | None = None
        self._flight: FlightRecord | None = None
        self._in_place: _InPlace | None = None
        self.path: Path | None = None

    def update(self, inputs: Sequence[Any], rng: Mapping[str, torch.Tensor], phase: str) -> None:
        """The bundle describes a call with these inputs from now on, and the call is about to happen."""
        if self._pid != os.getpid():
            # In a forked child: the files are the parent's.
            self._pid, self._in_place, self._flight, self.path = os.getpid(), None, None, None
        if self._in_place is None or not self._in_place.write(inputs, rng):
            self._write_anew(inputs, rng)
        assert self._flight is not None
        self._flight.write(phase)

    def idle(self) -> None:
        """The call has returned."""
        if self._flight is not None:
            self._flight.write("idle")

    def load(self) -> Repro:
        """The repro as it is on disk, the inputs as they were before the call."""
        assert self.path is not None
        return load_bundle(self.path, trusted=trust_own(read_manifest(self.path)))

    def discard(self) -> None:
        if self._pid != os.getpid():
            return
        if self._in_place is not None:
            self._in_place.close()
            self._in_place = None
        if self._flight is not None:
            self._flight.remove()
            self._flight = None
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            self.path = None

    def _write_anew(self, inputs: Sequence[Any], rng: Mapping[str, torch.Tensor]) -> None:
        if self._repro is None or self._written is None:
            # Without inputs: it is kept, and must not keep the user's tensors alive.
            repro = self._snapshot.repro(())
            self._written, compiler = write_with_source(repro)
            self._repro = replace(repro, compiler=compiler)
        ambient = replace(self._repro.ambient, rng=dict(rng))
        repro = replace(self._repro, inputs=tuple(inputs), ambient=ambient)
        packed = pack_values(values_of(repro, self._written), size_cap=self._session.settings.size_cap)
        manifest = manifest_of(repro, self._written, packed, run_id=self._session.run_id)
        files = members_of(self._written, packed, manifest)
        former = self.path, self._flight
        if self._in_place is not None:
            self._in_place.close()
        self.path = self._session.under_free_name(UNFINISHED, lambda path: write_bundle_files(path, files))
        self._flight = FlightRecord(self.path)
        announce_unfinished(self._session, self.path)
        self._in_place = _InPlace.of(self.path / TENSORS, inputs, rng, packed)
        if former[0] is not None and former[1] is not None:
            former[1].remove()
            shutil.rmtree(former[0], ignore_errors=True)


class _InPlace:
    """Writes the inputs of a later call over those of the first, where they have the same layout."""

    def __init__(
        self, file: StorageRewriter, layout: tuple[Any, ...], pieces: list[tuple[str, int, int, int]]
    ) -> None:
        self._file = file
        self._layout = layout
        self._pieces = pieces

    @classmethod
    def of(
        cls, path: Path, inputs: Sequence[Any], rng: Mapping[str, torch.Tensor], packed: PackedValues
    ) -> _InPlace | None:
        """None where the values are not all plain tensors on the CPU whose bytes were written as they are."""
        tensors = [*inputs, *rng.values()]
        layout = _layout(tensors)
        if layout is None:
            return None
        pieces = []
        for name, flat in packed.storages.items():
            if name.startswith("constant."):
                continue  # part of the graph: it does not change from call to call
            for index, tensor in enumerate(tensors):
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    offset = flat.data_ptr() - storage.data_ptr()
                    if offset >= 0 and offset + flat.numel() <= storage.nbytes():
                        pieces.append((name, index, offset, flat.numel()))
                        break
            else:
                return None
        return cls(StorageRewriter(path), layout, pieces)

    def write(self, inputs: Sequence[Any], rng: Mapping[str, torch.Tensor]) -> bool:
        tensors = [*inputs, *rng.values()]
        if _layout(tensors) != self._layout:
            return False
        for name, index, offset, length in self._pieces:
            self._file.write(name, tensors[index].untyped_storage().data_ptr() + offset, length)
        return True

    def close(self) -> None:
        self._file.close()


def _layout(values: Sequence[Any]) -> tuple[Any, ...] | None:
    """Everything about the inputs that the manifest says of them, but their bytes; None if that is more."""
    storages: dict[int, int] = {}
    layout: list[Any] = []
    for value in values:
        if not isinstance(value, torch.Tensor):
            layout.append((type(value), value))
            continue
        if type(value) not in _PLAIN or value.device.type != "cpu" or value.layout is not torch.strided:
            return None
        if value._is_zerotensor():
            return None  # it has no bytes that could be written over
        storage = value.untyped_storage()
        alias = storages.setdefault(storage.data_ptr(), len(storages))
        layout.append(
            (
                type(value),
                value.dtype,
                value.shape,
                value.stride(),
                value.storage_offset(),
                value.requires_grad,
                value.is_leaf,
                value.is_conj() or value.is_neg() or value.is_inference(),
                alias,
                storage.nbytes(),
            )
        )
    return tuple(layout)
