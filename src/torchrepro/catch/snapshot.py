"""Snapshot: a graph as it was before compilation, with the state around it.

Compilers change their graph, so it is turned into text at once; a bundle needs the inputs in addition.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch.fx import GraphModule

from torchrepro.bundle.process_groups import communicates, current_groups, is_distributed
from torchrepro.bundle.provenance import owners
from torchrepro.edit.surgery import has_effects
from torchrepro.execute.record_graphs import Origins
from torchrepro.graph_text.annotations import Dimension, TensorNote, note_of_node
from torchrepro.graph_text.metadata import symbols_of
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import GraphText, write_graph
from torchrepro.nouns.errors import CannotSerialise, in_a_line
from torchrepro.nouns.repro import Ambient, Collective, Compiler, Origin, Place, Repro, Symbol
from torchrepro.state.ambient import capture_ambient
from torchrepro.torch_api.dynamo import is_one_graph
from torchrepro.torch_api.fake import FakeTensor, FakeTensorMode
from torchrepro.torch_api.modes import disable_current_modes
from torchrepro.torch_api.tensors import (
    expression,
    hint,
)
from torchrepro.user_code.graph_source import without_code, write_with_source

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Everything about a repro but its inputs."""

    written: GraphText
    place: Place
    compiler: Compiler
    ambient: Ambient
    symbols: tuple[Symbol, ...]
    mutates: bool
    """Whether the graph may write to its inputs."""
    collective: bool = False
    """Whether it communicates with other ranks, so that one of them repeats it on recorded results."""
    backward: bool = False
    """Whether it is a backward graph that AOT made."""
    origin: Origin | None = None
    shapes: tuple[tuple[Dimension, ...] | None, ...] = ()
    """The sizes of each input, with symbols by name; None for what is no tensor."""
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
        """Take a snapshot of the graph. What cannot be data is left out, and named in `written.missing`."""
        below_aot = place is Place.AFTER_AOT
        notes = list(notes)

        def part(what: str, take: Callable[[], T], instead: T) -> T:
            try:
                return take()
            except Exception as exc:
                notes.append(f"{what} could not be recorded ({in_a_line(exc)})")
                return instead

        def origin() -> Origin | None:
            return origins.of(graph, below_aot=below_aot, backward=backward) if origins else None

        with disable_current_modes():
            return cls(
                written=_written(graph),
                place=place,
                compiler=replace(compiler, fullgraph=compiler.fullgraph or is_one_graph()),
                ambient=part("the state around the call", capture_ambient, Ambient()),
                symbols=part("the symbols of the graph", partial(symbols_of, graph), ()),
                shapes=part("the sizes of the inputs", partial(_shapes, graph), ()),
                mutates=part("whether it writes to inputs", partial(_any_node, graph, _writes), True),
                collective=part("whether it communicates", partial(communicates, graph), False),
                backward=backward,
                origin=part("the origin of the graph", origin, None),
                notes=tuple(notes),
            )

    @cached_property
    def key(self) -> str:
        """A digest of the graph's text."""
        return hashlib.sha256(self.written.text.encode()).hexdigest()

    @property
    def complete(self) -> bool:
        """Whether the graph can be read back and run."""
        return not self.as_data[0].missing

    @cached_property
    def as_data(self) -> tuple[GraphText, Repro]:
        """The graph's text with the source that it needs, and the repro without inputs as a reader finds it.

        A text that is complete is one that has been read back. Cached, so without the user's tensors.
        """
        plain = self._around(GraphModule(torch.nn.Module(), torch.fx.Graph()), ())
        if self.written.missing:
            return self.written, without_code(plain)
        try:
            return write_with_source(self.repro(()))
        except Exception as exc:
            missing = (f"what reads the graph back: {in_a_line(exc)}",)
            return replace(self.written, missing=missing), without_code(plain)

    def data_with(
        self,
        inputs: Sequence[Any],
        rng: Mapping[str, torch.Tensor],
        *,
        earlier: Sequence[tuple[Any, ...]] = (),
        notes: Iterable[str] = (),
    ) -> tuple[GraphText, Repro]:
        """Return the same with inputs. The repro's graph is not used: the text may not be a whole graph."""
        written, plain = self.as_data
        if self.complete and not all(type(value) in _WITHOUT_CODE for value in inputs):
            with suppress(Exception):  # a value whose class cannot be kept is missing, and named as such
                written, _ = write_with_source(self.repro(inputs, earlier=earlier))
        ambient = replace(plain.ambient, rng=dict(rng)) if rng else plain.ambient
        filled = replace(plain, inputs=concrete(inputs), ambient=ambient, earlier=tuple(earlier))
        return written, replace(filled, groups=self._groups(inputs), notes=(*plain.notes, *notes))

    def _groups(self, inputs: Sequence[Any]) -> Any:
        return current_groups() if self.collective or any(map(is_distributed, inputs)) else None

    @cached_property
    def graph(self) -> GraphModule:
        """The graph as it will be read back from a bundle. It is shared: copy it before changing it.

        Raises CannotSerialise or GraphTextError if it cannot be read back.
        """
        written = self.written
        if written.missing:
            raise CannotSerialise(f"the graph lacks {written.missing[0]}")
        with disable_current_modes():
            return read_graph(
                written.text,
                written.constants,
                trusted=owners(written.needs_trust),
                kernels=written.kernels,
            ).eval()

    def concrete(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return example inputs with numbers in place of symbols: hints, or the sizes of the real tensors."""
        sizes: dict[str, int] = {}
        for shape, value in zip(self.shapes, inputs, strict=False):
            if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and shape:
                pairs = zip(shape, value.shape, strict=False)
                sizes |= {name: size for name, size in pairs if isinstance(name, str) and type(size) is int}
        return concrete(inputs, sizes)

    def repro(
        self,
        inputs: Sequence[Any],
        *,
        rng: Mapping[str, torch.Tensor] | None = None,
        earlier: Sequence[tuple[Any, ...]] = (),
        collectives: Sequence[Collective] = (),
    ) -> Repro:
        """Return a repro of this graph on these inputs, as it will be read back from a bundle."""
        found = self._around(self.graph, inputs)
        ambient = replace(found.ambient, rng=rng) if rng else found.ambient
        return replace(found, ambient=ambient, earlier=tuple(earlier), collectives=tuple(collectives))

    def _around(self, graph: GraphModule, inputs: Sequence[Any]) -> Repro:
        return Repro(
            graph=graph,
            inputs=concrete(inputs),
            place=self.place,
            compiler=self.compiler,
            ambient=self.ambient,
            symbols=self.symbols,
            origin=self.origin,
            groups=self._groups(inputs),
            notes=self.notes,
        )


def _shapes(graph: GraphModule) -> tuple[tuple[Dimension, ...] | None, ...]:
    notes = [note_of_node(node) for node in graph.graph.nodes if node.op == "placeholder"]
    return tuple(note.shape if isinstance(note, TensorNote) else None for note in notes)


def _written(graph: GraphModule) -> GraphText:
    try:
        return write_graph(graph)
    except Exception:  # of whatever the graph holds: what can be written is better than no bundle
        return write_graph(graph, incomplete=True)


def concrete(inputs: Sequence[Any], sizes: Mapping[str, int] | None = None) -> tuple[Any, ...]:
    """Return the inputs with symbols replaced by their hints, also in the sizes of fake tensors.

    `sizes` has the values of symbols without a hint (`mark_unbacked`), as far as they are known.
    """
    mode = FakeTensorMode()
    known = sizes or {}

    def number(value: Any) -> Any:
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value
        found = hint(value)
        return known.get(expression(value), value) if found is None else found

    def made(value: Any) -> Any:
        if not isinstance(value, FakeTensor) or value.layout is not torch.strided:
            return number(value)
        size, stride = [number(n) for n in value.shape], [number(n) for n in value.stride()]
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


PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that are nothing but their bytes and their layout."""
_WITHOUT_CODE = (*PLAIN, bool, int, float, complex, str, type(None))
"""Types of inputs for which a bundle needs no class of the user."""
