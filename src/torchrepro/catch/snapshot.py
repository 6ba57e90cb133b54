"""Snapshot: a graph as it was before compilation, with the state around it.

Compilers change their graph, so it is turned into text at once; a bundle needs the inputs in addition.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from torchrepro.bundle.archive import write_bundle_files
from torchrepro.bundle.load import load_verified
from torchrepro.bundle.process_groups import communicates, current_groups, is_distributed
from torchrepro.bundle.provenance import owners
from torchrepro.bundle.read import TENSORS
from torchrepro.bundle.storage_file import StorageRewriter
from torchrepro.bundle.values import PackedValues, pack_values
from torchrepro.catch.caught import UNFINISHED, FlightRecord
from torchrepro.catch.session import Session
from torchrepro.edit.surgery import has_effects
from torchrepro.execute.record_graphs import Origins
from torchrepro.graph_text.metadata import symbols_of
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import GraphText, write_graph
from torchrepro.nouns.repro import Ambient, Collective, Compiler, Origin, Place, Repro, Symbol, count_ops
from torchrepro.script.save_bundle import manifest_of, members_of, values_of
from torchrepro.state.ambient import capture_ambient
from torchrepro.torch_api.fake import FakeTensor, FakeTensorMode
from torchrepro.torch_api.modes import disable_current_modes
from torchrepro.torch_api.tensors import is_zero_tensor
from torchrepro.user_code.graph_source import write_with_source


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Everything about a repro but its inputs."""

    written: GraphText
    place: Place
    compiler: Compiler
    ambient: Ambient
    symbols: tuple[Symbol, ...]
    ops: int
    mutates: bool
    """Whether the graph may write to its inputs."""
    collective: bool = False
    """Whether it communicates with other ranks, so that one of them repeats it on recorded results."""
    backward: bool = False
    """Whether it is a backward graph that AOT made."""
    origin: Origin | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def take(
        cls,
        graph: GraphModule,
        place: Place,
        compiler: Compiler,
        *,
        backward: bool = False,
        origins: Origins | None = None,
        notes: Iterable[str] = (),
    ) -> Snapshot:
        """Take a snapshot of the graph. Raises CannotSerialise or GraphTextError if it cannot be data."""
        below_aot = place is Place.AFTER_AOT
        with disable_current_modes():
            return cls(
                written=write_graph(graph),
                place=place,
                compiler=compiler,
                ambient=capture_ambient(),
                symbols=symbols_of(graph),
                ops=count_ops(graph),
                mutates=_any_node(graph, _writes),
                collective=communicates(graph),
                backward=backward,
                origin=origins.of(graph, below_aot=below_aot, backward=backward) if origins else None,
                notes=tuple(notes),
            )

    @cached_property
    def key(self) -> str:
        """A digest of the graph's text."""
        return hashlib.sha256(self.written.text.encode()).hexdigest()

    @cached_property
    def graph(self) -> GraphModule:
        """The graph as it will be read back from a bundle. It is shared: copy it before changing it."""
        written = self.written
        with disable_current_modes():
            return read_graph(
                written.text,
                written.constants,
                trusted=owners(written.needs_trust),
                kernels=written.kernels,
            ).eval()

    def repro(
        self,
        inputs: Sequence[Any],
        *,
        rng: Mapping[str, torch.Tensor] | None = None,
        earlier: Sequence[tuple[Any, ...]] = (),
        collectives: Sequence[Collective] = (),
        notes: Iterable[str] = (),
    ) -> Repro:
        """Return a repro of this graph on these inputs, as it will be read back from a bundle."""
        return Repro(
            graph=self.graph,
            inputs=concrete(inputs),
            place=self.place,
            compiler=self.compiler,
            ambient=replace(self.ambient, rng=rng) if rng else self.ambient,
            symbols=self.symbols,
            earlier=tuple(earlier),
            origin=self.origin,
            groups=current_groups() if self.collective or any(map(is_distributed, inputs)) else None,
            collectives=tuple(collectives),
            notes=(*self.notes, *notes),
        )


def concrete(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return the inputs with symbols replaced by their hints, also in the sizes of fake tensors.

    Checked on torch 2.11 to 2.15 (`SymNode.hint`).
    """
    mode = FakeTensorMode()

    def hint(value: Any) -> Any:
        symbolic = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
        return value.node.hint if symbolic and value.node.hint is not None else value

    def made(value: Any) -> Any:
        if not isinstance(value, FakeTensor) or value.layout is not torch.strided:
            return hint(value)
        size, stride = [hint(n) for n in value.shape], [hint(n) for n in value.stride()]
        like: Any = {"dtype": value.dtype, "device": value.device, "requires_grad": value.requires_grad}
        with mode:
            return torch.empty_strided(size, stride, **like)

    return tuple(map(made, inputs))


def _any_node(graph: GraphModule, fits: Callable[[torch.fx.Node], bool]) -> bool:
    """Return whether `fits` is true of a node of the graph or of a graph nested in it."""
    modules = (module for module in graph.modules() if isinstance(module, GraphModule))
    return any(fits(node) for module in modules for node in module.graph.nodes)


def _writes(node: torch.fx.Node) -> bool:
    """Return whether a node may write in place: a false positive adds a note, a miss saves a wrong input."""
    if node.op in ("call_module", "output"):
        return node.op == "call_module"
    return has_effects(node) or getattr(node.target, "__name__", "") == "batch_norm"


_PLAIN = (torch.Tensor, torch.nn.Parameter)


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

    @cached_property
    def _without_inputs(self) -> tuple[Repro, GraphText]:
        """The repro without inputs: it is cached, and must not keep the user's tensors alive."""
        repro = self._snapshot.repro(())
        written, plain = write_with_source(repro)
        return plain, written

    def _rewrite_all(self, inputs: Sequence[Any], rng: Mapping[str, torch.Tensor]) -> None:
        plain, written = self._without_inputs
        if any(isinstance(value, torch.Tensor) and type(value) not in _PLAIN for value in inputs):
            written, _ = write_with_source(self._snapshot.repro(inputs))  # with the classes of the inputs
        repro = replace(plain, inputs=tuple(inputs), ambient=replace(plain.ambient, rng=dict(rng)))
        cap = self._session.settings.size_cap
        packed = pack_values(values_of(repro, written), size_cap=cap, code=written.code)
        files = members_of(written, packed, manifest_of(repro, written, packed, run_id=self._session.run_id))
        # Not sealed: later calls overwrite its tensors, and finishing it seals it.
        path = self._session.under_free_name(
            UNFINISHED, lambda path: write_bundle_files(path, files, seal=False)
        )
        flight = FlightRecord(path)
        self._session.announce_unfinished(path)
        self.discard()
        self.path, self._flight = path, flight
        self._in_place = _InPlace.of(path / TENSORS, [*inputs, *rng.values()], packed)


@dataclass(frozen=True, eq=False)
class _InPlace:
    """Overwrites the inputs of the first call by those of a later one, if they have the same layout."""

    file: StorageRewriter
    layout: tuple[Any, ...]
    pieces: list[tuple[str, int, int, int]]
    """(name of a storage in the file, index of its value, offset in that, bytes)."""

    @classmethod
    def of(cls, path: Path, values: Sequence[Any], packed: PackedValues) -> _InPlace | None:
        """Return None unless all tensors are plain ones on the CPU whose bytes were written unchanged."""
        layout = _layout(values)
        if layout is None:
            return None
        pieces = []
        for name, flat in packed.storages.items():
            if name.startswith("constant."):
                continue  # part of the graph: it does not change from call to call
            for index, tensor in enumerate(values):
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    offset = flat.data_ptr() - storage.data_ptr()
                    if offset >= 0 and offset + flat.numel() <= storage.nbytes():
                        pieces.append((name, index, offset, flat.numel()))
                        break
            else:
                return None
        return cls(StorageRewriter(path), layout, pieces)

    def write(self, values: Sequence[Any]) -> bool:
        if _layout(values) != self.layout:
            return False
        for name, index, offset, length in self.pieces:
            self.file.write(name, values[index].untyped_storage().data_ptr() + offset, length)
        return True


def _layout(values: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return all that a manifest has about the inputs; None for tensors that need more than their bytes."""
    storages: dict[int, int] = {}
    layout: list[Any] = []
    for value in values:
        if not isinstance(value, torch.Tensor):
            layout.append((type(value), value))
            continue
        if type(value) not in _PLAIN or value.device.type != "cpu" or value.layout is not torch.strided:
            return None
        if is_zero_tensor(value):
            return None  # it has no bytes to overwrite
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
