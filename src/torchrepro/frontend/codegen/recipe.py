"""Recipe: how generated code makes one object. And the error for an object that no code can make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class CannotRebuild(Exception):
    """A live value that generated code cannot make again; the text names its type."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Each function asks for the parts it needs before it writes anything: it may be run again."""

    make: Callable[[], str]
    """The expression that makes the object, with the parts that it cannot exist without."""
    fill: Callable[[str], None] | None = None
    """Writes the statements that add the rest to the object in that variable."""
    whole: Callable[[], str] | None = None
    """An expression for the complete object if it is not part of itself. `make` then asks for no parts."""
