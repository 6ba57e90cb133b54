"""FrameState: what a frame consists of where it is entered, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import CellType
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class FrameState:
    """Generated code reads it as `L`, `C` and `S`. A variable that is not bound is missing from `locals`."""

    locals: Mapping[str, Any]
    cells: Mapping[str, CellType]
    """Of variables shared with inner and outer functions. At the start of a function only the outer ones."""
    stack: tuple[Any, ...] = ()
    """Bottom first; `NULL` where CPython has an empty slot."""
