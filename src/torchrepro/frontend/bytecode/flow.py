"""Flow: where a program goes from an instruction, and where it has an exception on its stack.

Liveness: which variables may still be read from a place on. The others need not be rebuilt there.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from torchrepro.frontend.bytecode.program import Instruction, Program

_ENDS: Final = frozenset({"RETURN_VALUE", "RAISE_VARARGS", "RERAISE"})
_NEVER_RAISE: Final = frozenset({"PUSH_EXC_INFO", "POP_EXCEPT", "COPY", "NOP", "JUMP"})
"""Among these are all that stand in the range of a handler that expects another stack than theirs."""


class Edge(NamedTuple):
    """A way from one instruction to another."""

    to: int
    jumped: bool


def edges(program: Program, index: int) -> tuple[Edge, ...]:
    """Return what may run next if nothing is raised; of a conditional jump, the place behind it first."""
    instruction = program.instructions[index]
    if instruction.name in _ENDS:
        return ()
    if instruction.target is None:
        return (Edge(index + 1, jumped=False),)
    jump = Edge(instruction.target, jumped=True)
    return (jump,) if instruction.name == "JUMP" else (Edge(index + 1, jumped=False), jump)


@lru_cache(maxsize=1024)
def exceptions_before(program: Program) -> tuple[int | None, ...]:
    """Per instruction, how many exceptions the stack holds before it; None where the program never comes.

    An exception is there from a handler's first instruction until `POP_EXCEPT`. `RERAISE` always has one.
    """
    found: list[int | None] = [None] * len(program.instructions)
    # An exception that is raised and not yet handled counts for itself: some handlers only pass it on.
    work = [(0, 0, False)]
    while work:
        index, handled, raised = work.pop()
        if found[index] is not None:
            continue
        instruction = program.instructions[index]
        found[index] = handled + (raised or instruction.name == "RERAISE")
        if instruction.handler is not None and instruction.name not in _NEVER_RAISE:
            work.append((instruction.handler.target, handled, True))
        if instruction.name == "PUSH_EXC_INFO":
            handled, raised = handled + 1, False
        elif instruction.name == "POP_EXCEPT":
            handled -= 1
        work.extend((edge.to, handled, raised) for edge in edges(program, index))
    return tuple(found)


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
    """Return names of locals and cells whose value may be read from `index` on, be it by a handler."""
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
    """Return what is read without an instruction of its own: `super()` and `locals()` look into the frame."""
    code = program.code
    if _READERS_OF_FRAMES.intersection(code.co_names):
        return frozenset(program.locals + program.cells)
    if "super" in code.co_names and "__class__" in code.co_freevars:
        return frozenset(program.locals[:1])
    return frozenset()
