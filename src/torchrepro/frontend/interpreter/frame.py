"""Frame: a function that is being interpreted, as CPython keeps it: variables, stack, position."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from enum import Enum
from types import CellType, FunctionType
from typing import Any

from torchrepro.frontend.bytecode.program import Program
from torchrepro.frontend.graph_breaks import Where


class Signal(Enum):
    """Why stepping a frame stops. The value in question is on top of the frame's stack."""

    RETURN = "return"
    YIELD = "yield"


class Frame:
    """The state of one call."""

    __slots__ = (
        *("builtins", "cells", "function", "globals", "handled", "index"),
        *("locals", "names", "parent", "program", "stack"),
    )

    def __init__(
        self,
        program: Program,
        globals: dict[str, Any],
        builtins: Mapping[str, Any],
        *,
        locals: dict[str, Any] | None = None,
        cells: dict[str, CellType] | None = None,
        names: MutableMapping[str, Any] | None = None,
        function: FunctionType | None = None,
        parent: Frame | None = None,
    ) -> None:
        self.program = program
        self.globals = globals
        self.builtins = builtins
        self.function = function
        self.locals: dict[str, Any] = {} if locals is None else locals
        """Bound variables only."""
        self.cells: dict[str, CellType] = {} if cells is None else cells
        """A variable of this function's own is here or in `locals`: CPython keeps the two in one slot."""
        self.names = names
        """Where a class body or a module keeps its variables; None in a function."""
        self.stack: list[Any] = []
        self.index = 0
        """Of the instruction that is about to run, or is running."""
        self.parent = parent
        self.handled: BaseException | None = None
        """The exception whose handler is running; those of outer handlers are on the stack, as in CPython."""

    @classmethod
    def of_function(cls, program: Program, function: FunctionType, locals: dict[str, Any]) -> Frame:
        """A function at its start: arguments bound, variables of outer functions known."""
        cells = dict(zip(program.code.co_freevars, function.__closure__ or (), strict=True))
        return cls(
            program,
            function.__globals__,
            builtins_of(function),
            locals=locals,
            cells=cells,
            function=function,
        )

    @property
    def where(self) -> Where:
        return where_of(self.program, self.index)

    def handle(self, error: BaseException) -> bool:
        """Go to the handler for what the current instruction raised; return whether there is one."""
        handler = self.program.instructions[self.index].handler
        if handler is None:
            return False
        del self.stack[handler.depth :]
        if handler.push_last:
            self.stack.append(self.index)
        self.stack.append(error)
        self.index = handler.target
        return True


def where_of(program: Program, index: int) -> Where:
    """The line of the user's that an instruction belongs to."""
    code, line = program.code, program.instructions[index].line
    return Where(code.co_filename, code.co_firstlineno if line is None else line, code.co_qualname)


def builtins_of(function: Any) -> Mapping[str, Any]:
    """What names in a function mean that its globals do not have."""
    found: Mapping[str, Any] = function.__builtins__
    return found
