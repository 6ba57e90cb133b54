"""Reduce a Python program that fails: fewer statements, then simpler ones, with the same failure.

Statements go first, by `minimal_subset`, because most of a random program has nothing to do with its failure.
Then every node of the syntax tree is tried without an element of its lists, without an optional part, and
replaced by a part of it (a block by its body, an expression by an operand). Accepted candidates are smaller,
so it terminates. What is not Python, or raises what the program did not raise in plain Python, is not run.
"""

from __future__ import annotations

import ast
import copy
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from torchrepro.engine.subsets import minimal_subset
from torchrepro.hunt.generators.python_programs import PythonProgram
from torchrepro.hunt.generators.python_world import HARNESS
from torchrepro.hunt.judge_programs import ProgramVerdict, effects, judge_program

Fails = Callable[[PythonProgram], bool]
_PARTS = 12
"""How many of the expressions inside of one are tried in its place."""


def reduce_failure(found: ProgramVerdict, *, seconds: float | None = None) -> ProgramVerdict:
    """Return the smallest program found that fails as this one does, with its own verdict.

    After so many `seconds` nothing more is tried.
    """
    known, began = _errors(found.program), time.monotonic()

    def fails(program: PythonProgram) -> bool:
        if seconds is not None and time.monotonic() - began > seconds:
            return False
        return _errors(program) <= known and judge_program(program, (found.way,)).same_failure(found)

    return judge_program(reduce_program(found.program, fails), (found.way,))


def _errors(program: PythonProgram) -> set[str]:
    """Return the types of the errors that a program raises in plain Python."""
    try:
        return {facts["error"] for facts in effects(program) if "error" in facts}
    except Exception as error:  # of the module or of `calls`
        return {f"outside: {type(error).__name__}"}


def reduce_program(program: PythonProgram, fails: Fails) -> PythonProgram:
    """Return a program that `fails`, of which no single part can be left out. The given one has to."""
    reducer = _Reducer(ast.parse(program.source.removesuffix(HARNESS)), fails)
    while reducer.without_statements() | reducer.with_smaller_nodes():
        pass
    return _program(reducer.tree)


class _Reducer:
    """The smallest tree so far, and the texts that were tried."""

    def __init__(self, tree: ast.Module, fails: Fails) -> None:
        self.tree = tree
        self._fails = fails
        self._tried: dict[str, bool] = {}

    def without_statements(self) -> bool:
        """Keep only the statements that are needed; return whether any was left out."""
        count = len(_statements(self.tree))
        tree = self.tree

        def first(subsets: Sequence[Sequence[int]]) -> int | None:
            kept = (_with_statements(tree, set(subset)) for subset in subsets)
            return next((place for place, each in enumerate(kept) if self._try(each)), None)

        needed = minimal_subset(range(count), first)
        self.tree = _with_statements(tree, set(needed))
        return len(_statements(self.tree)) < count

    def with_smaller_nodes(self) -> bool:
        """Make single nodes smaller, in the order of the text; return whether any became smaller."""
        place, changed = 0, False
        while place < _size(self.tree):
            size = _size(self.tree)
            if any(_size(each) < size and self._try(each) for each in _smaller(self.tree, place)):
                changed = True
            else:
                place += 1
        return changed

    def _try(self, tree: ast.Module) -> bool:
        """Return whether a tree fails; then it is the smallest so far."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of code that cannot work
                compile(ast.fix_missing_locations(tree), "<candidate>", "exec")
            program = _program(tree)
        except (SyntaxError, ValueError, TypeError):
            return False  # a list that must not be empty, a part that is missing
        if program.source not in self._tried:
            self._tried[program.source] = self._fails(program)
        if self._tried[program.source]:
            self.tree = tree
        return self._tried[program.source]


def _program(tree: ast.Module) -> PythonProgram:
    return PythonProgram(ast.unparse(tree) + "\n" + HARNESS)


def _size(tree: ast.AST) -> int:
    return sum(1 for _ in ast.walk(tree))


def _statements(tree: ast.Module) -> list[ast.stmt]:
    """Return all statements that may be left out."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and not isinstance(node, ast.Pass)]


def _with_statements(tree: ast.Module, kept: set[int]) -> ast.Module:
    """Return the tree with these of its statements; a body that would be empty is `pass`."""
    tree = copy.deepcopy(tree)
    dropped = {id(node) for place, node in enumerate(_statements(tree)) if place not in kept}
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body:
                left = [each for each in body if id(each) not in dropped]
                setattr(node, name, left or ([ast.Pass()] if name == "body" else []))
    return tree


def _smaller(tree: ast.Module, place: int) -> Iterator[ast.Module]:
    """Yield the tree with smaller forms of the node at a place in the order of `ast.walk`."""
    node = _node(tree, place)
    for name, value in ast.iter_fields(node):
        if isinstance(value, list):
            for index in range(len(value)):
                yield _without_element(tree, place, name, index)
        elif isinstance(value, ast.AST):
            yield _edited(tree, place, partial(_without_part, name))
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            if len(targets) == len(values):
                for index in range(len(targets)):
                    yield _without_target(tree, place, index)
    if isinstance(node, ast.stmt):
        for name in ("body", "orelse", "finalbody"):
            yield _replaced(tree, place, getattr(node, name, []))
    elif isinstance(node, ast.expr):
        for part in _expressions(node)[1:_PARTS]:
            yield _replaced(tree, place, [part])
        for constant in (0, None):
            yield _replaced(tree, place, [ast.Constant(constant)])


def _without_part(name: str, node: ast.AST) -> None:
    setattr(node, name, None)


def _node(tree: ast.AST, place: int) -> ast.AST:
    return next(node for number, node in enumerate(ast.walk(tree)) if number == place)


def _expressions(node: ast.AST) -> list[ast.expr]:
    return [part for part in ast.walk(node) if isinstance(part, ast.expr)]


def _edited(tree: ast.Module, place: int, edit: Callable[[ast.AST], None]) -> ast.Module:
    tree = copy.deepcopy(tree)
    edit(_node(tree, place))
    return tree


def _without_element(tree: ast.Module, place: int, name: str, index: int) -> ast.Module:
    """Drop an element of a list; of a dict, the key and its value."""

    def drop(node: ast.AST) -> None:
        for each in ("keys", "values") if isinstance(node, ast.Dict) else (name,):
            del getattr(node, each)[index]

    return _edited(tree, place, drop)


def _without_target(tree: ast.Module, place: int, index: int) -> ast.Module:
    """Drop a target of `x, y = a, b` and its value; one that is left is no tuple."""

    def drop(node: Any) -> None:
        sides = node.targets[0].elts, node.value.elts
        for side in sides:
            del side[index]
        if len(sides[0]) == 1:
            node.targets, node.value = [sides[0][0]], sides[1][0]

    return _edited(tree, place, drop)


def _replaced(tree: ast.Module, place: int, by: Sequence[ast.AST]) -> ast.Module:
    """Replace a node by others in its parent: one for an expression, any number for a statement."""
    tree = copy.deepcopy(tree)
    node = _node(tree, place)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, name, by[0])
                return tree
            if isinstance(value, list) and any(each is node for each in value):
                at = next(number for number, each in enumerate(value) if each is node)
                value[at : at + 1] = by
                return tree
    return tree
