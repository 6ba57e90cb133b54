"""One instruction of CPython as a function: for work that CPython does in an instruction and nowhere else."""

from __future__ import annotations

import opcode
from functools import cache
from types import CodeType, FunctionType
from typing import Any


def native(name: str, operand: int, count: int, globals: dict[str, Any]) -> FunctionType:
    """A function of one or two parameters that runs the instruction on them and returns what it leaves.

    Only for instructions without inline cache. The parameters are unbound first: an exception that is raised
    would refer to itself, by the traceback and this frame.
    """
    return FunctionType(_code(name, operand, count), globals)


@cache
def _code(name: str, operand: int, count: int) -> CodeType:
    template = (lambda first, second: None).__code__ if count == 2 else (lambda first: None).__code__
    steps = [
        ("RESUME", 0),
        *(("LOAD_FAST", index) for index in range(count)),
        *(("DELETE_FAST", index) for index in range(count)),
        (name, operand),
        ("RETURN_VALUE", 0),
    ]
    code = bytes(byte for step, argument in steps for byte in (opcode.opmap[step], argument))
    # An entry for all of them, without columns: formatting a traceback needs a position of each instruction.
    lines = bytes((0x80 | 13 << 3 | len(steps) - 1, 0))
    return template.replace(co_code=code, co_linetable=lines, co_stacksize=count + 1)
