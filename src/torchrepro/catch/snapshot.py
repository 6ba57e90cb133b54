"""Snapshot: a graph as it was before the compiler saw it, with the state around it.

Compilers change their graph, so it is turned into text at once; what a bundle needs besides are the inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule

from torchrepro.bundle.load import owners
from torchrepro.execute.record_graphs import Origins
from torchrepro.graph_text.metadata import symbols_of
from torchrepro.graph_text.parser import read_graph
from torchrepro.graph_text.printer import GraphText, write_graph
from torchrepro.nouns.ambient import Ambient
from torchrepro.nouns.origin import Origin
from torchrepro.nouns.repro import Compiler, Place, Repro, Symbol, count_ops
from torchrepro.state.ambient import capture_ambient
from torchrepro.torch_api.fake import FakeTensor, FakeTensorMode
from torchrepro.torch_api.ops import OpOverload, OpOverloadPacket


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
    """Whether the graph talks to other ranks, so that it cannot be run once more on one of them."""
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
        """The graph now. CannotSerialise or GraphTextError where it cannot be kept as data."""
        below_aot = place is Place.AFTER_AOT
        with _plainly():
            return cls(
                written=write_graph(graph),
                place=place,
                compiler=compiler,
                ambient=capture_ambient(),
                symbols=symbols_of(graph),
                ops=count_ops(graph),
                mutates=_any_node(graph, _writes),
                collective=_any_node(graph, _talks),
                backward=backward,
                origin=origins.of(graph, below_aot=below_aot, backward=backward) if origins else None,
                notes=tuple(notes),
            )

    @cached_property
    def key(self) -> str:
        """The same for the same graph."""
        return hashlib.sha256(self.written.text.encode()).hexdigest()

    @cached_property
    def graph(self) -> GraphModule:
        """The graph as it will be read back from a bundle. It is shared: who changes it takes a copy."""
        written = self.written
        with _plainly():
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
        notes: Iterable[str] = (),
    ) -> Repro:
        """A repro of this graph on these inputs, as it will be read back from a bundle."""
        return Repro(
            graph=self.graph,
            inputs=concrete(inputs),
            place=self.place,
            compiler=self.compiler,
            ambient=replace(self.ambient, rng=rng) if rng else self.ambient,
            symbols=self.symbols,
            earlier=tuple(earlier),
            origin=self.origin,
            notes=(*self.notes, *notes),
        )


def concrete(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Inputs with the hints of symbols in their place, also in the sizes of fake tensors."""
    mode = FakeTensorMode()
    return tuple(
        _concrete_fake(value, mode) if isinstance(value, FakeTensor) else _hint(value) for value in inputs
    )


def _hint(value: Any) -> Any:
    """Checked on torch 2.11 to 2.15 (`SymNode.hint`)."""
    symbolic = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
    return value.node.hint if symbolic and value.node.hint is not None else value


def _concrete_fake(value: FakeTensor, mode: FakeTensorMode) -> torch.Tensor:
    if value.layout is not torch.strided:
        return value
    size, stride = [_hint(n) for n in value.shape], [_hint(n) for n in value.stride()]
    with mode:
        return torch.empty_strided(
            size, stride, dtype=value.dtype, device=value.device, requires_grad=value.requires_grad
        )


def _any_node(graph: GraphModule, fits: Callable[[torch.fx.Node], bool]) -> bool:
    """Whether some node of the graph, or of a graph nested in it, is one of those."""
    modules = (module for module in graph.modules() if isinstance(module, GraphModule))
    return any(fits(node) for module in modules for node in module.graph.nodes)


def _talks(node: torch.fx.Node) -> bool:
    if isinstance(node.target, OpOverload | OpOverloadPacket):
        namespace = str(node.target).partition(".")[0]
        return namespace in ("_c10d_functional", "c10d_functional", "c10d")
    return (getattr(node.target, "__module__", "") or "").startswith("torch.distributed")


def _writes(node: torch.fx.Node) -> bool:
    """Whether a node may write in place: a wrong yes costs a note, a wrong no a wrong input."""
    if node.op == "call_module":
        return True
    if node.op not in ("call_function", "call_method"):
        return False
    if isinstance(node.target, OpOverload):
        return bool(node.target._schema.is_mutable)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = (name.endswith("_") and not name.endswith("__")) or name in ("setitem", "copy_", "batch_norm")
    in_place |= name.startswith("i") and getattr(node.target, "__module__", "") == "_operator"
    return in_place or "out" in node.kwargs or bool(node.kwargs.get("inplace"))


def _plainly() -> Any:
    """No mode of the user's or of the compiler's takes part in what is done here.

    Checked on torch 2.11 to 2.15 (`_disable_current_modes`).
    """
    from torchrepro.torch_api.modes import disable_current_modes as _disable_current_modes

    return _disable_current_modes()
