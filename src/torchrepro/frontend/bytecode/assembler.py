"""Assembles code objects from the instructions of a program, in the form of the running Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType

from bytecode import Bytecode, Instr, Label
from bytecode.flags import CompilerFlags
from bytecode.instr import UNSET, CellVar, FreeVar, InstrLocation, TryBegin, TryEnd

from torchrepro.frontend.bytecode.program import (
    FOR_ITER_SKIPS,
    NOWHERE,
    NULL_AFTER_CALLABLE,
    Handler,
    Instruction,
    Program,
)

_OF_CELLS = frozenset({"LOAD_CLOSURE", "LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "MAKE_CELL"})


@dataclass(slots=True)
class Assembler:
    """Assembles a code object from instructions, undoing what `program_of` writes out.

    `at` has the labels of the program's instructions, for handlers and jumps.
    """

    program: Program
    made: Bytecode = field(default_factory=Bytecode)
    at: dict[int, Label] = field(default_factory=dict)
    _guard: TryBegin | None = None
    _guarded_by: Handler | None = None

    def body(
        self, exits: frozenset[int] = frozenset(), leave: Callable[[int], None] = lambda index: None
    ) -> None:
        """Append the whole program, each instruction at its label; at `exits`, what `leave` emits."""
        for index, instruction in enumerate(self.program.instructions):
            self.guard(None if index in exits else instruction.handler)
            self.made.append(self.label(index))
            if index in exits:
                leave(index)
                continue
            target, backward = None, False
            if instruction.target is not None:
                skipped = FOR_ITER_SKIPS if instruction.name == "FOR_ITER" else 0
                target, backward = self.label(instruction.target - skipped), instruction.target <= index
            self.add(instruction, target, backward)
        self.guard(None)

    def add(self, instruction: Instruction, target: Label | None = None, backward: bool = False) -> None:
        """Append one instruction in the form of the running Python."""
        for name, argument in self._native(instruction.name, instruction.argument, target, backward):
            self.made.append(Instr(name, argument, location=instruction.position))

    def emit(self, name: str, argument: object = None, position: InstrLocation = NOWHERE) -> None:
        """Append an instruction that the program does not have."""
        self.add(Instruction(name, argument, None, None, position))

    def load_callable(self, callee: object, position: InstrLocation) -> None:
        """Append what puts a callable below the arguments of a call."""
        loads = (("LOAD_CONST", callee), ("PUSH_NULL", None))
        for name, argument in loads if NULL_AFTER_CALLABLE else reversed(loads):
            self.emit(name, argument, position)

    def jump(self, target: Label, position: InstrLocation) -> None:
        """Append a jump to a label further on."""
        self.made.append(Instr("JUMP_FORWARD", target, location=position))

    def guard(self, handler: Handler | None) -> None:
        """Send exceptions raised from here on to `handler`."""
        if handler == self._guarded_by:
            return
        if self._guard is not None:
            self.made.append(TryEnd(self._guard))
        self._guarded_by, self._guard = handler, None
        if handler is not None:
            self._guard = TryBegin(self.label(handler.target), handler.push_last, handler.depth)
            self.made.append(self._guard)

    def label(self, index: int) -> Label:
        return self.at.setdefault(index, Label())

    def code(self, arguments: tuple[str, ...], stack_size: int) -> CodeType:
        """Return code with these positional arguments and the name, file and variables of the program."""
        code, made = self.program.code, self.made
        made.name, made.qualname, made.filename = code.co_name, code.co_qualname, code.co_filename
        made.first_lineno = code.co_firstlineno
        made.flags = CompilerFlags(code.co_flags) & ~(CompilerFlags.VARARGS | CompilerFlags.VARKEYWORDS)
        made.argnames, made.argcount = list(arguments), len(arguments)
        made.cellvars, made.freevars = list(code.co_cellvars), list(code.co_freevars)
        # Recomputed depths start from an empty stack: wrong code where a frame is entered midway.
        return made.to_code(stacksize=stack_size, compute_exception_stack_depths=False)

    def _native(
        self, name: str, argument: object, target: Label | None, backward: bool
    ) -> list[tuple[str, object]]:
        if target is not None:
            return [(_directed(name, backward), target)]
        match name, argument:
            case "LOAD_ATTR", str() if sys.version_info >= (3, 12):
                return [(name, (False, argument))]
            case "LOAD_GLOBAL", str():
                return [(name, (False, argument))]
            case "LOAD_SUPER_ATTR", str():
                return [(name, (False, True, argument))]
            case "LOAD_FAST", _ if sys.version_info >= (3, 12):
                return [("LOAD_FAST_CHECK", argument)]  # an unbound variable must raise, and not crash
            case name, str() if name in _OF_CELLS:
                if name == "LOAD_CLOSURE" and sys.version_info >= (3, 13):
                    name = "LOAD_FAST"
                kind = CellVar if argument in self.program.code.co_cellvars else FreeVar
                return [(name, kind(argument))]
            case "CALL", int():
                return [*_precall(argument), (name, argument)]
            case "CALL_KW", (int(count), names):
                if sys.version_info >= (3, 13):
                    return [("LOAD_CONST", names), (name, count)]
                return [("KW_NAMES", names), *_precall(count), ("CALL", count)]
        return [(name, UNSET if argument is None and name != "LOAD_CONST" else argument)]


def _precall(count: int) -> list[tuple[str, object]]:
    return [("PRECALL", count)] if sys.version_info < (3, 12) else []


def _directed(name: str, backward: bool) -> str:
    direction = "BACKWARD" if backward else "FORWARD"
    if name == "JUMP":
        return f"JUMP_{direction}"
    if name.startswith("POP_JUMP_IF") and sys.version_info < (3, 12):
        return name.replace("POP_JUMP_", f"POP_JUMP_{direction}_")
    return name
