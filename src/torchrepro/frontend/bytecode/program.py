"""Program: a code object as a list of instructions that can be stepped, entered midway and assembled again.

The instructions are those of the running Python with its shortcuts written out: a method load is a plain
attribute load and a NULL, a fused pair is two instructions (`normalise.py` lists them). Fewer kinds to step,
and a stack whose shape does not depend on what a load finds at run time.

NULL: the empty stack slot that CPython keeps beside a callable, as a value of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from types import CodeType
from typing import Final


@dataclass(frozen=True, slots=True)
class Handler:
    """Where an exception goes that is raised here: a row of CPython's exception table."""

    target: int
    """Index of the handler's first instruction."""
    depth: int
    """How many stack slots are kept."""
    push_last: bool
    """Whether the offset of the raising instruction is pushed below the exception (for `RERAISE`)."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where in the source text an instruction comes from: what a traceback underlines."""

    line: int
    end_line: int | None
    column: int | None
    end_column: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    name: str
    """The opcode's name as `dis` gives it, but for what `normalise.py` writes out."""
    argument: object
    """Resolved: a constant itself, a name as `str`, an operator as `bytecode`'s enum; a number otherwise."""
    target: int | None
    """Index of the instruction that a jump goes to."""
    handler: Handler | None
    position: Position | None

    @property
    def line(self) -> int | None:
        return None if self.position is None else self.position.line


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    code: CodeType
    instructions: tuple[Instruction, ...]

    @property
    def locals(self) -> tuple[str, ...]:
        return self.code.co_varnames

    @property
    def cells(self) -> tuple[str, ...]:
        """Variables shared with inner functions, and those shared with outer ones."""
        return self.code.co_cellvars + self.code.co_freevars


class Null(Enum):
    NULL = "NULL"

    def __repr__(self) -> str:
        return "NULL"


NULL: Final = Null.NULL
