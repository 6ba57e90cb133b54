"""Programs read from code objects: what remains, and that nothing is lost."""

from __future__ import annotations

import argparse
import ast
import contextlib
import dis
import inspect
import itertools
import re
import subprocess
import traceback
from collections.abc import Iterator
from types import CodeType, ModuleType

import pytest

from torchrepro.frontend.bytecode import program
from torchrepro.frontend.bytecode.program import Handler, Instruction, program_of
from torchrepro.frontend.bytecode.resume import Point, resumed_code

MODULES = (argparse, ast, contextlib, dis, inspect, subprocess, traceback)


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def of_module(module: ModuleType) -> Iterator[CodeType]:
    return codes(compile(inspect.getsource(module), module.__name__, "exec"))


def documented_kinds() -> set[str]:
    """The names in the docstring's table, braces written out."""
    assert program.__doc__
    table = program.__doc__.split("What remains:")[1]
    kinds = set()
    for word in re.findall(r"[A-Z][A-Z_{},0-9]+", table):
        parts = [part.split(",") for part in re.split(r"[{}]", word.rstrip(","))]
        kinds |= {"".join(choice) for choice in itertools.product(*parts)}
    return kinds


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_only_documented_instructions_remain(module: ModuleType) -> None:
    found = {each.name for code in of_module(module) for each in program_of(code).instructions}
    assert found - documented_kinds() == set()


def facts(instruction: Instruction, moved: int) -> tuple[object, ...]:
    handler, target = instruction.handler, instruction.target
    return (
        instruction.name,
        instruction.argument,
        None if target is None else target - moved,
        handler and Handler(handler.target - moved, handler.depth, handler.push_last),
        instruction.position,
    )


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_an_assembled_program_reads_as_the_one_it_was_made_of(module: ModuleType) -> None:
    for code in of_module(module):
        if not code.co_flags & inspect.CO_OPTIMIZED:
            continue
        program = program_of(code)
        again = program_of(resumed_code(program, Point(0), frozenset(code.co_varnames)))
        assert again.instructions[0].name == "JUMP"
        got = [facts(each, 1) for each in again.instructions[1:]]
        assert got == [facts(each, 0) for each in program.instructions], code.co_qualname


def test_a_program_is_read_once() -> None:
    assert program_of(facts.__code__) is program_of(facts.__code__)


def test_equal_code_of_two_files_gives_two_programs() -> None:
    first, second = (compile("lambda: 1", file, "eval").co_consts[0] for file in ("one.py", "two.py"))
    assert program_of(first).code.co_filename == "one.py"
    assert program_of(second).code.co_filename == "two.py"


def test_calls_with_keywords_are_one_instruction() -> None:
    program = program_of((lambda f: f(1, key=2)).__code__)
    assert [each.argument for each in program.instructions if each.name == "CALL_KW"] == [(2, ("key",))]


def test_the_end_of_a_loop_is_behind_what_is_never_run() -> None:
    def f(values):
        for _ in values:
            pass
        return "after"

    instructions = program_of(f.__code__).instructions
    (loop,) = (each for each in instructions if each.name == "FOR_ITER")
    assert loop.target is not None
    assert instructions[loop.target].argument == "after"


def test_instructions_know_their_line_and_columns() -> None:
    program = program_of(documented_kinds.__code__)
    lines, start = inspect.getsourcelines(documented_kinds)
    splits = (each.position for each in program.instructions if each.argument == "split")
    (split,) = (each for each in splits if each.lineno == start + 3)
    text = lines[split.lineno - start][split.col_offset : split.end_col_offset]
    assert text == "program.__doc__.split"
