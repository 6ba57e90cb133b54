"""Liveness: which variables may still be read from a place on. The others need not be rebuilt there."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from torchrepro.frontend.bytecode.flow import edges
from torchrepro.frontend.bytecode.program import Instruction, Program

_USES: Final = frozenset(
    {
        "LOAD_FAST",
        "DELETE_FAST",  # raises where there is nothing to delete
        "LOAD_FAST_AND_CLEAR",
        "MAKE_CELL",
        "LOAD_CLOSURE",
        "LOAD_DEREF",
        "STORE_DEREF",  # what is stored is seen by whoever shares the cell
        "DELETE_DEREF",
    }
)
_OVERWRITES: Final = frozenset({"STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"})
_READERS_OF_FRAMES: Final = frozenset(
    {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "breakpoint", "set_trace"}
)


def live_before(program: Program, index: int) -> frozenset[str]:
    """Names of locals and cells whose value may be read from `index` on, be it by a handler."""
    return _live(program)[index]


@lru_cache(maxsize=1024)
def _live(program: Program) -> tuple[frozenset[str], ...]:
    instructions = program.instructions
    always = _read_by_frame(program)
    live = [always] * len(instructions)
    changed = True
    while changed:
        changed = False
        for index in reversed(range(len(instructions))):
            instruction = instructions[index]
            after = always.union(*(live[edge.to] for edge in edges(program, index)))
            before = _uses(instruction) | (after - _overwrites(instruction)) | always
            if instruction.handler is not None:
                before |= live[instruction.handler.target]
            if before != live[index]:
                live[index], changed = before, True
    return tuple(live)


def _uses(instruction: Instruction) -> frozenset[str]:
    return frozenset({str(instruction.argument)}) if instruction.name in _USES else frozenset()


def _overwrites(instruction: Instruction) -> frozenset[str]:
    return frozenset({str(instruction.argument)}) if instruction.name in _OVERWRITES else frozenset()


def _read_by_frame(program: Program) -> frozenset[str]:
    """What is read without an instruction that says so: `super()` and `locals()` look into the frame."""
    code = program.code
    if _READERS_OF_FRAMES.intersection(code.co_names):
        return frozenset(program.locals + program.cells)
    if "super" in code.co_names and "__class__" in code.co_freevars:
        return frozenset(program.locals[:1])
    return frozenset()
