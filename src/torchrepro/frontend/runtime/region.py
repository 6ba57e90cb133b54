"""Region: a captured stretch of a function: guards, a compiled graph, the code around it, and its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from torchrepro.frontend.bytecode.point import Point
from torchrepro.frontend.codegen.region import RegionText
from torchrepro.frontend.graph_breaks import Where
from torchrepro.frontend.guards.function import GuardFunction
from torchrepro.frontend.runtime.changing import Sources
from torchrepro.frontend.trace.recorder import Captured
from torchrepro.frontend.trace.speculation import Failure
from torchrepro.frontend.trace.tracer import Inlined


class Then(Enum):
    """What comes after a region."""

    RETURN = auto()
    """The function has returned; the region gives its value."""
    STEP = auto()
    """Python runs one instruction, and capture goes on behind it; the region gives the frame."""
    FINISH = auto()
    """Python runs the rest of the function; the region gives the frame."""


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    guards: GuardFunction
    code: RegionText
    start: Where
    then: Then
    captured: Captured
    inlined: Mapping[Inlined, int]
    """Functions that were stepped as part of it, and how often each."""
    entry: int = 0
    """Index of the instruction that it begins at; 0: at the start of the function."""
    end: Point | None = None
    """Where Python goes on."""
    failure: Failure | None = None
    """Why the region ends there."""
    changing: Sources = frozenset()
    """Numbers that it does not read."""
