"""What each instruction does, by family. Importing the package fills the table."""

from torchrepro.frontend.interpreter.instructions import (
    calls,
    collections,
    intrinsics,
    modules,
    operators,
    patterns,
    raising,
    stack,
    variables,
    yielding,
)
from torchrepro.frontend.interpreter.instructions.table import INSTRUCTIONS

__all__ = [
    "INSTRUCTIONS",
    "calls",
    "collections",
    "intrinsics",
    "modules",
    "operators",
    "patterns",
    "raising",
    "stack",
    "variables",
    "yielding",
]
