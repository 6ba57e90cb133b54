"""Point: where a frame is entered, and what one instruction makes of it."""

from __future__ import annotations

import dis
from dataclasses import dataclass
from functools import lru_cache

from torchrepro.frontend.bytecode.flow import edges
from torchrepro.frontend.bytecode.program import Instruction, Program


@dataclass(frozen=True, slots=True)
class Point:
    """Where a frame is entered, and the shape of its stack there."""

    index: int
    nulls: tuple[bool, ...] = ()
    """Which stack slots are NULL, the bottom first."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A place that an instruction leads to."""

    point: Point
    bound: frozenset[str]
    """Variables that have a value, or a cell, there."""
    jumped: bool


def reached_from(program: Program, point: Point, bound: frozenset[str]) -> tuple[Reached, ...]:
    """Where the instruction at `point` may lead, the place behind it first. The start runs up to `RESUME`.

    Exact, since it starts from a frame as it is: all that an instruction does to NULLs and to bound variables
    can be told from the NULLs and the bound variables before it.
    """
    if point.index == 0:
        index = body_start(program)
        made = {str(each.argument) for each in program.instructions[:index] if each.name == "MAKE_CELL"}
        return (Reached(Point(index), bound | made, jumped=False),)
    instruction = program.instructions[point.index]
    after = _bound_after(instruction, point.nulls, bound)
    return tuple(
        Reached(Point(index, _nulls_after(instruction, point.nulls, bound, jumped)), after, jumped)
        for index, jumped in edges(program, point.index)
    )


@lru_cache(maxsize=1024)
def depth_before(program: Program) -> tuple[int | None, ...]:
    """Per instruction, how many slots the stack has before it; None where the program never comes."""
    found: list[int | None] = [None] * len(program.instructions)
    work = [(0, 0)]
    while work:
        index, depth = work.pop()
        if found[index] is not None:
            continue
        found[index] = depth
        instruction = program.instructions[index]
        if instruction.handler is not None:
            handler = instruction.handler
            work.append((handler.target, handler.depth + 1 + handler.push_last))
        for after, jumped in edges(program, index):
            work.append((after, depth + _stack_effect(instruction, jumped)))
    return tuple(found)


def body_start(program: Program) -> int:
    """The first instruction behind those that set a frame up."""
    return next(index for index, each in enumerate(program.instructions) if each.name == "RESUME") + 1


def _nulls_after(
    instruction: Instruction, nulls: tuple[bool, ...], bound: frozenset[str], jumped: bool
) -> tuple[bool, ...]:
    match instruction.name, instruction.argument:
        case "PUSH_NULL", _:
            return (*nulls, True)
        case "LOAD_FAST_AND_CLEAR", name:
            return (*nulls, name not in bound)
        case "COPY", int(depth):
            return (*nulls, nulls[-depth])
        case "SWAP", int(depth):
            swapped = list(nulls)
            swapped[-1], swapped[-depth] = swapped[-depth], swapped[-1]
            return tuple(swapped)
    change = _stack_effect(instruction, jumped)
    after = nulls[:change] if change < 0 else nulls + (False,) * change
    if instruction.name in ("CALL", "CALL_KW", "CALL_FUNCTION_EX"):
        return (*after[:-1], False)  # the result takes the place of a NULL
    return after


def _bound_after(instruction: Instruction, nulls: tuple[bool, ...], bound: frozenset[str]) -> frozenset[str]:
    match instruction.name, instruction.argument:
        case "STORE_FAST", str(name):
            return bound - {name} if nulls[-1] else bound | {name}
        case "MAKE_CELL", str(name):
            return bound | {name}
        case "DELETE_FAST" | "LOAD_FAST_AND_CLEAR", str(name):
            return bound - {name}
    return bound


def _stack_effect(instruction: Instruction, jumped: bool) -> int:
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
