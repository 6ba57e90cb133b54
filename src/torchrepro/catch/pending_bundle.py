"""The bundle that is on disk before a call, in case the process does not survive it.

The first call writes it. Later ones overwrite the bytes of those inputs that may have changed.
"""

from __future__ import annotations

import itertools
import os
import shutil
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from torchrepro.bundle.load import load_verified
from torchrepro.bundle.read import TENSORS
from torchrepro.bundle.storage_file import StorageRewriter
from torchrepro.bundle.storages import bytes_in_place
from torchrepro.bundle.values import PackedValues, pack_values
from torchrepro.catch.caught import UNFINISHED, FlightRecord
from torchrepro.catch.session import Session
from torchrepro.catch.snapshot import PLAIN, Snapshot
from torchrepro.nouns.repro import Repro
from torchrepro.script.save_bundle import members_of, values_of
from torchrepro.torch_api.tensors import base_without_grad, is_zero_tensor, plain_torch, version_of


class PendingBundle:
    """The unfinished bundle of one graph, updated before each call."""

    def __init__(self, session: Session, snapshot: Snapshot) -> None:
        self._session = session
        self._snapshot = snapshot
        self._pid = os.getpid()
        self._flight: FlightRecord | None = None
        self._in_place: _InPlace | None = None
        self.path: Path | None = None

    def update(self, inputs: Sequence[Any], rng: Mapping[str, torch.Tensor], phase: str) -> None:
        """Write the inputs of a call that is about to happen to the bundle, and its phase."""
        if self._pid != os.getpid():
            # In a forked child: the files are the parent's.
            self._pid, self._in_place, self._flight, self.path = os.getpid(), None, None, None
        if self._in_place is None or not self._in_place.write([*inputs, *rng.values()]):
            self._rewrite_all(inputs, rng)
        assert self._flight is not None
        self._flight.write(phase)

    def idle(self) -> None:
        """Record that the call has returned."""
        if self._flight is not None:
            self._flight.write("idle")

    def load(self) -> Repro:
        """Return the repro from disk, with the inputs as they were before the call."""
        assert self.path is not None
        return load_verified(self.path)

    def discard(self) -> None:
        if self._pid != os.getpid():
            return
        if self._in_place is not None:
            self._in_place.file.close()
        if self._flight is not None:
            self._flight.remove()
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
        self._in_place, self._flight, self.path = None, None, None

    def _rewrite_all(self, inputs: Sequence[Any], rng: Mapping[str, torch.Tensor]) -> None:
        written, repro = self._snapshot.data_with(inputs, rng)
        cap = self._session.settings.size_cap
        packed = pack_values(values_of(repro, written), size_cap=cap, code=written.code)
        members = members_of(repro, written, packed, run_id=self._session.run_id)
        # Not sealed: later calls overwrite its tensors, and finishing it seals it.
        path = self._session.under_free_name(UNFINISHED, partial(members.write, seal=False))
        try:
            flight = FlightRecord(path)
        except OSError:
            shutil.rmtree(path, ignore_errors=True)  # without its record nobody would remove it
            raise
        self._session.announce_unfinished(path)
        if self.path is None:
            self._session.endings.append(self.discard)
        self.discard()
        self.path, self._flight = path, flight
        self._in_place = _InPlace.of(path / TENSORS, [*inputs, *rng.values()], packed)


_ALWAYS_WRITTEN = 1 << 16
"""Bytes of a tensor up to which it is written each time: a write through `.data` is not counted by torch."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A storage in the file, and where its bytes come from."""

    name: str
    index: int
    """Which of the values has the storage."""
    offset: int
    length: int


class _InPlace:
    """Overwrites the inputs of the first call by those of a later one, if they have the same layout.

    A large tensor that torch has not counted a write to since is in the file already.
    """

    def __init__(
        self,
        path: Path,
        known: _Known,
        layout: tuple[Any, ...],
        pieces: list[_Piece],
        values: Sequence[Any],
    ) -> None:
        self.file = StorageRewriter(path)
        self._known, self._layout = known, layout
        self._pieces = pieces
        self._states = [_state(values[piece.index]) for piece in pieces]

    @classmethod
    def of(cls, path: Path, values: Sequence[Any], packed: PackedValues) -> _InPlace | None:
        """Return None unless all tensors are plain ones whose bytes were written unchanged."""
        known = _Known()
        layout = known.layout(values)
        if layout is None:
            return None
        holders = {
            tensor.untyped_storage().data_ptr(): index
            for index, tensor in enumerate(values)
            if isinstance(tensor, torch.Tensor)
        }
        pieces = []
        for name, stored in packed.storages.items():
            if name.startswith("constant."):
                continue  # part of the graph: it does not change from call to call
            address, offset = packed.origins.get(name, (0, 0))
            if address not in holders:
                return None
            pieces.append(_Piece(name, holders[address], offset, stored.numel()))
        return cls(path, known, layout, pieces, values)

    def write(self, values: Sequence[Any]) -> bool:
        if self._known.layout(values) != self._layout:
            return False
        here: list[tuple[str, int, int]] = []
        batches: dict[torch.device, list[tuple[_Piece, torch.UntypedStorage]]] = {}
        for number, piece in enumerate(self._pieces):
            tensor = values[piece.index]
            state, storage = _state(tensor), tensor.untyped_storage()
            is_small = piece.length <= _ALWAYS_WRITTEN
            if not is_small and state == self._states[number]:
                continue
            self._states[number] = state
            if storage.device.type == "cpu":
                here.append((piece.name, storage.data_ptr() + piece.offset, piece.length))
            elif is_small:
                batches.setdefault(storage.device, []).append((piece, storage))
            else:
                self._write_from_device([(piece, storage)])
        self.file.write(here)
        for batch in batches.values():
            self._write_from_device(batch)
        return True

    def _write_from_device(self, batch: Sequence[tuple[_Piece, torch.UntypedStorage]]) -> None:
        """Write pieces on one device with one copy to the host: each copy waits for the device."""
        with plain_torch():
            parts = [bytes_in_place(storage, piece.offset, piece.length) for piece, storage in batch]
            flat = (parts[0] if len(parts) == 1 else torch.cat(parts)).cpu()
        starts = itertools.accumulate((piece.length for piece, _ in batch), initial=flat.data_ptr())
        self.file.write(
            (piece.name, address, piece.length) for (piece, _), address in zip(batch, starts, strict=False)
        )


def _state(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address of a tensor's memory and the number of writes to it that torch has counted."""
    return tensor.untyped_storage().data_ptr(), -1 if tensor.is_inference() else version_of(tensor)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a manifest has about a tensor, and how to see quickly that it is still true."""

    tensor: weakref.ref[torch.Tensor]
    quick: tuple[Any, ...]
    """What an assignment to `.data` and the like can change."""
    storage: int
    facts: tuple[Any, ...]


class _Known:
    """The facts about the tensors of the last call: a parameter is the same tensor in each."""

    def __init__(self) -> None:
        self._former: list[_Facts | None] = []

    def layout(self, values: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return all that a manifest has about inputs; None for tensors that need more than their bytes."""
        if len(self._former) != len(values):
            self._former = [None] * len(values)
        storages: dict[int, int] = {}
        layout: list[Any] = []
        for number, value in enumerate(values):
            if not isinstance(value, torch.Tensor):
                layout.append((type(value), value))
                continue
            known = self._former[number]
            if known is None or known.tensor() is not value or known.quick != _quick(value):
                known = self._former[number] = _facts(value)
            if known is None:
                return None
            layout.append((known.facts, storages.setdefault(known.storage, len(storages))))
        return tuple(layout)


def _quick(tensor: torch.Tensor) -> tuple[Any, ...]:
    memory = tensor.untyped_storage()
    view = tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.requires_grad
    return memory.data_ptr(), memory.nbytes(), *view


def _facts(tensor: torch.Tensor) -> _Facts | None:
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided or is_zero_tensor(tensor):
        return None  # it is more than bytes, or has none to overwrite
    quick = _quick(tensor)
    address, *others = quick
    odd = tensor.is_conj() or tensor.is_neg() or tensor.is_inference()
    facts = type(tensor), tensor.device, *others, tensor.is_leaf, odd, base_without_grad(tensor) is not None
    return _Facts(weakref.ref(tensor), quick, address, facts)
