"""Flow: where a program goes from an instruction, and where it has an exception on its stack."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from torchrepro.frontend.bytecode.program import Program

_ENDS: Final = frozenset({"RETURN_VALUE", "RAISE_VARARGS", "RERAISE"})
_NEVER_RAISE: Final = frozenset({"PUSH_EXC_INFO", "POP_EXCEPT", "COPY", "NOP", "JUMP"})
"""Among these are all that stand in the range of a handler that expects another stack than theirs."""


class Edge(NamedTuple):
    """A way from one instruction to another."""

    to: int
    jumped: bool


def edges(program: Program, index: int) -> tuple[Edge, ...]:
    """What may run next if nothing is raised; of a conditional jump, the place behind it first."""
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
