"""The flow through a program: edges, the depth of the stack, and which variables are live."""

from __future__ import annotations

import dis
from functools import lru_cache
from typing import Final

from torchrepro.frontend.bytecode.program import Instruction, Program

_ENDS: Final = frozenset({"RETURN_VALUE", "RAISE_VARARGS", "RERAISE"})


_NEVER_RAISE: Final = frozenset({"PUSH_EXC_INFO", "POP_EXCEPT", "COPY", "NOP", "JUMP"})
"""Includes all instructions within the range of a handler that expects another stack than theirs."""


def edges(program: Program, index: int) -> tuple[tuple[int, bool], ...]:
    """Return what may run next if nothing is raised, and whether by a jump: the next instruction first."""
    instruction = program.instructions[index]
    if instruction.name in _ENDS:
        return ()
    if instruction.target is None:
        return ((index + 1, False),)
    jump = (instruction.target, True)
    return (jump,) if instruction.name == "JUMP" else ((index + 1, False), jump)


@lru_cache(maxsize=1024)
def stack_before(program: Program) -> tuple[tuple[int, int] | None, ...]:
    """Return for each instruction how many slots and exceptions the stack has; None if it is unreachable.

    An exception is there from a handler's first instruction until `POP_EXCEPT`. `RERAISE` always has one.
    """
    found: list[tuple[int, int] | None] = [None] * len(program.instructions)
    # An exception that is raised and not yet handled is counted separately: some handlers only reraise it.
    work = [(0, 0, 0, False)]
    while work:
        index, depth, handled, raised = work.pop()
        if found[index] is not None:
            continue
        instruction = program.instructions[index]
        found[index] = depth, handled + (raised or instruction.name == "RERAISE")
        handler = instruction.handler
        if handler is not None and instruction.name not in _NEVER_RAISE:
            work.append((handler.target, handler.depth + 1 + handler.push_last, handled, True))
        if instruction.name == "PUSH_EXC_INFO":
            handled, raised = handled + 1, False
        elif instruction.name == "POP_EXCEPT":
            handled -= 1
        for after, jumped in edges(program, index):
            work.append((after, depth + stack_effect(instruction, jumped), handled, raised))
    return tuple(found)


def stack_effect(instruction: Instruction, jumped: bool) -> int:
    match instruction.name, instruction.argument:
        case ("CALL", int(count)) | ("CALL_KW", (int(count), _)):
            return -1 - count
        case "FOR_ITER", _:
            return -1 if jumped else 1
        case "LOAD_CLOSURE" | "LOAD_CONST", _:
            return 1
        case "JUMP", _:
            return 0
        case name, _ if name.startswith("POP_JUMP_IF"):
            return -1
        case name, int(argument):
            return dis.stack_effect(dis.opmap[name], argument, jump=jumped)
    operation = dis.opmap[instruction.name]
    takes_argument = instruction.argument is not None or instruction.target is not None
    return dis.stack_effect(operation, 0 if takes_argument else None, jump=jumped)


_USES: Final = frozenset(
    {
        *("LOAD_FAST", "LOAD_FAST_AND_CLEAR", "MAKE_CELL", "LOAD_CLOSURE", "LOAD_DEREF", "DELETE_DEREF"),
        "DELETE_FAST",  # raises where there is nothing to delete
        "STORE_DEREF",  # visible to all functions that share the cell
    }
)


_OVERWRITES: Final = frozenset({"STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"})


_READERS_OF_FRAMES: Final = frozenset(
    {"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe", "breakpoint", "set_trace"}
)


def live_before(program: Program, index: int) -> frozenset[str]:
    """Return names of locals and cells whose value may be read from `index` on, handlers included."""
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
            following = always.union(*(live[after] for after, _ in edges(program, index)))
            before = _name_in(_USES, instruction) | (following - _name_in(_OVERWRITES, instruction)) | always
            if instruction.handler is not None:
                before |= live[instruction.handler.target]
            if before != live[index]:
                live[index], changed = before, True
    return tuple(live)


def _name_in(names: frozenset[str], instruction: Instruction) -> frozenset[str]:
    return frozenset({str(instruction.argument)}) if instruction.name in names else frozenset()


def _read_by_frame(program: Program) -> frozenset[str]:
    """Return the names read without an instruction of their own: `super()` and `locals()` read the frame."""
    code = program.code
    if _READERS_OF_FRAMES.intersection(code.co_names):
        return frozenset(program.locals + program.cells)
    if "super" in code.co_names and "__class__" in code.co_freevars:
        return frozenset(program.locals[:1])
    return frozenset()
