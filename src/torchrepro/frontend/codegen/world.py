"""World: what rebuilding asks the tracer, about values and about the objects that existed before the call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import torch

from torchrepro.frontend.codegen.writer import Kept
from torchrepro.frontend.source import Source


class ShadowKind(StrEnum):
    """What of an old object was copied. The stand-in is of the same builtin type unless said otherwise."""

    LIST = "list"
    DICT = "dict"
    """Also the globals of a function and the tables of an `nn.Module`."""
    SET = "set"
    DEQUE = "deque"
    BYTEARRAY = "bytearray"
    CELL = "cell"
    ATTRIBUTES = "attributes"
    """The `__dict__` of an object, a module or a class; the stand-in is a dict of all of it."""
    SLOTS = "slots"
    """The `__slots__` of an object; the stand-in is a dict of those that are set."""


@dataclass(frozen=True, slots=True, eq=False)
class Shadow:
    """An old object and the copy that tracing changed in its place."""

    source: Source
    original: Any
    stand_in: Any
    kind: ShadowKind
    before: dict[Any, Any] | None = None
    """Of a dict or attributes: what was there when it was copied. Code outside of the trace may change the
    original meanwhile (a lazy import adds to the globals of a module): that is no effect of the trace. What
    the trace has written unread stands for nothing here, to be written back; a written cell has {}."""


class World(Protocol):
    """Values are those of the trace: fake tensors, shadows, objects made while tracing."""

    @property
    def kept(self) -> Kept: ...

    @property
    def shadows(self) -> Sequence[Shadow]:
        """In the order in which they were first touched."""

    def source_of(self, value: Any) -> Source | None:
        """Return where an object (or what a shadow stands for) was before the call; `None` for a new one."""

    def tensor_input(self, value: torch.Tensor) -> Source | None:
        """Return where a tensor is read that is an input of the graph."""

    def output_index(self, value: torch.Tensor) -> int:
        """Makes a tensor an output of the graph; the same index for the same tensor."""

    def is_fresh(self, value: Any) -> bool:
        """Return whether an object, function or class was made while tracing by code that was followed."""

    def is_opaque(self, value: Any) -> bool:
        """Return whether nothing but its type is known of an object."""

    def stand_in(self, original: Any) -> Any:
        """Return what stood for an old object in the trace: its shadow, its fake tensor, or the object."""
