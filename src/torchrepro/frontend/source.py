"""Source: where a value can be found again when the captured function is called another time.

Guards are checked at sources, graph inputs are read from them, and an object that existed before the call is
rebuilt by reading it, so that it is the same object. A root is part of the frame, or held by the region.

FrameState: what a frame consists of where it is entered, as values.
"""

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


@dataclass(frozen=True, slots=True)
class Source:
    """One access on the way from a root to a value. Hashable: two equal sources read the same value."""

    @property
    def base(self) -> Source | None:
        """What a value is a part of; None for a root."""
        return getattr(self, "of", None)


@dataclass(frozen=True, slots=True)
class Local(Source):
    """A local variable (an argument, at the start of a function)."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class StackSlot(Source):
    """A value that was on the stack where the frame is entered, counted from the bottom."""

    index: int

    def __str__(self) -> str:
        return f"<stack {self.index}>"


@dataclass(frozen=True, slots=True)
class Cell(Source):
    """The cell object (not its contents) of a variable shared with another function."""

    name: str

    def __str__(self) -> str:
        return f"<cell {self.name}>"


@dataclass(frozen=True, slots=True)
class Held(Source):
    """An object the region keeps: the globals of a function, a class, a module. Compared by identity."""

    label: str
    """Its name in messages: `globals of pkg.module`, `class Block`."""
    key: int
    """`id()` of the object; `Kept`, which makes the `Held`, keeps the object alive."""

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True, slots=True)
class Attribute(Source):
    """`base.name`, by `getattr`: only where that runs no code of the user (slots, `__dict__`, `__self__`)."""

    of: Source
    name: str

    def __str__(self) -> str:
        return f"{self.of}.{self.name}"


@dataclass(frozen=True, slots=True)
class Item(Source):
    """`base[key]` of a builtin container; the key is a constant (equal keys of different types differ)."""

    of: Source
    key: Any
    kind: type

    @classmethod
    def at(cls, of: Source, key: Any) -> Item:
        return cls(of, key, type(key))

    def __str__(self) -> str:
        match self.of:
            case Attribute(owner, "__dict__"):
                return f"{owner}.{self.key}"
            case Item(Attribute(owner, "__dict__"), "_parameters" | "_buffers" | "_modules", _):
                return f"{owner}.{self.key}"
        return f"{self.of}[{self.key!r}]"


@dataclass(frozen=True, slots=True)
class Bare(Source):
    """A container as the builtin type sees it that its class derives from: see `raw_access.py`."""

    of: Source
    kind: type

    def __str__(self) -> str:
        return str(self.of)


@dataclass(frozen=True, slots=True)
class KeyOf(Source):
    """The n-th key of a dict, where keys are objects and not constants."""

    of: Source
    index: int

    def __str__(self) -> str:
        return f"key {self.index} of {self.of}"


@dataclass(frozen=True, slots=True)
class Memory(Source):
    """The tensor in the memory of an array of NumPy's."""

    of: Source

    def __str__(self) -> str:
        return str(self.of)


def instance_value(of: Source, name: str) -> Item:
    """Return the source of an attribute stored in the instance's `__dict__`."""
    return Item.at(Attribute(of, "__dict__"), name)
