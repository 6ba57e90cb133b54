"""NULL: the empty stack slot that CPython keeps beside a callable, as a value of its own."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Null(Enum):
    NULL = "NULL"

    def __repr__(self) -> str:
        return "NULL"


NULL: Final = Null.NULL
