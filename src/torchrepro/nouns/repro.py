"""Repro: a graph, its real inputs, where it was taken, the compiler under test and the ambient state.

Next to it, what a bundle asks its user to trust.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from torchrepro.nouns.ambient import Ambient
from torchrepro.nouns.signature import Signature

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Origin:
    """A graph among those that capture made of a program."""

    number: int
    """From 0, in the order of compilation; a backward graph has the number of its forward."""
    seen: int
    """How many captured graphs there were when it was kept."""
    compilation: int = 0
    """How often the same code of the user had been compiled before: 0 unless it was compiled again."""
    backward: bool = False
    """Whether AOT made it for the gradients of graph `number`."""
    source: str = ""
    """Where it begins in the user's program: `model.py:12 in forward`."""

    def __str__(self) -> str:
        """`graph 1 of 3, compiled for the second time`."""
        of = f" of {self.seen}" if self.seen > 1 else ""
        whose = "backward of " if self.backward else ""
        again = f", compiled again ({self.compilation + 1}. time)" if self.compilation else ""
        return f"{whose}graph {self.number}{of}{again}"


SOURCE_TRUST = "source"
"""The word that trusts the source in a bundle (`--trust source`)."""


class CustomOpEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operator that does not come with torch, and what registers it."""

    op: str
    schema: str
    module: str = ""
    file: str = ""
    library: str = ""
    """A shared object that `torch.ops.load_library` loads."""
    in_source: bool = False
    """Whether `operators.py` of the bundle can register it."""


class Place(StrEnum):
    """Where in the pipeline the graph was taken."""

    BEFORE_CAPTURE = "before_capture"
    """A whole call of the user's function or module: the graph is that one call (`bundle/user_calls.py`)."""
    AFTER_CAPTURE = "after_capture"
    """The captured graph and its example inputs, before AOT (`repro_after="dynamo"`)."""
    AFTER_AOT = "after_aot"
    """A forward, backward or inference graph as handed to the backend (`repro_after="aot"`)."""
    EXPORT = "export"
    """A graph of `torch.export`."""


class Frontend(StrEnum):
    """What captures Python into graphs."""

    DYNAMO = "dynamo"
    TORCHREPRO = "torchrepro"
    """Our own (`frontend/`): a second opinion on the capture stage."""


AOT_INDUCTOR = "aot_inductor"
"""No backend of `torch.compile`: compiles an exported program ahead of time, into a library on disk."""


@dataclass(frozen=True)
class Symbol:
    """A size that the compiler treats as unknown: its value when traced, and what it may be."""

    name: str
    hint: int | float | None = None
    lower: int | None = None
    upper: int | None = None
    unbacked: bool = False
    """Known only while the graph runs (`.item()`, `nonzero`): it has no hint."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """The compiler under test, by name: a registered backend or `package.module:function`."""

    name: str = "inductor"
    mode: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    dynamic: bool | None = None
    fullgraph: bool = False
    recapture: bool = False
    """Hand a captured graph to `torch.compile`, to be captured once more, and not straight to the backend."""
    frontend: Frontend = Frontend.DYNAMO
    """What captures a model or a whole call."""

    def __str__(self) -> str:
        extras = [f"mode={self.mode}"] if self.mode else []
        extras += [f"{key}={value!r}" for key, value in self.options.items()]
        extras += [f"dynamic={self.dynamic}"] if self.dynamic is not None else []
        extras += [f"frontend={self.frontend}"] if self.frontend is not Frontend.DYNAMO else []
        return f"{self.name}({', '.join(extras)})" if extras else self.name


@dataclass(frozen=True, eq=False)
class Repro:
    """A failing (or once failing) computation as data. Equality is identity: it holds tensors."""

    graph: torch.fx.GraphModule
    inputs: tuple[Any, ...]
    place: Place = Place.AFTER_CAPTURE
    compiler: Compiler = field(default_factory=Compiler)
    ambient: Ambient = field(default_factory=Ambient)
    symbols: tuple[Symbol, ...] = ()
    """The symbols of a graph with dynamic shapes, with their hints."""
    backward: bool | None = None
    """Run backward as well? None: if an output asks for gradients."""
    strict: bool = False
    tolerance: float | None = None
    """How it was judged, where that was not by the default rule."""
    expected: Signature | None = None
    """The failure that was recorded, None for a repro that has not been judged."""
    earlier: tuple[tuple[Any, ...], ...] = ()
    """Inputs of the calls that came before on the same compiled function, where the failure needs them."""
    origin: Origin | None = None
    """Which of the graphs of a program it is, where that is known."""
    notes: tuple[str, ...] = ()
    """What a reader must know: data that was not kept, objects that had to be left out."""

    @property
    def ops(self) -> int:
        """Operations in the graph, nested graphs included: what `start_ops` and `ops` count."""
        return count_ops(self.graph)


def count_ops(graph: torch.fx.GraphModule) -> int:
    """Nodes that compute something: calls, in this graph and in the graphs nested in it."""
    import torch

    own = sum(node.op in ("call_function", "call_method", "call_module") for node in graph.graph.nodes)
    nested = (child for child in graph.children() if isinstance(child, torch.fx.GraphModule))
    return own + sum(count_ops(child) for child in nested)
