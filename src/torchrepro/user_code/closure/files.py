"""A source file as the definitions in it, found by the code, the class or the name that came of them."""

from __future__ import annotations

import ast
import functools
import linecache
import types
from collections.abc import Iterator
from dataclasses import dataclass

from torchrepro.nouns.errors import CannotSerialise
from torchrepro.user_code.closure.scopes import DEFINITIONS, Function, Names, bound_names, resolve_names


@dataclass(frozen=True, eq=False)
class SourceFile:
    """One parsed file."""

    path: str
    text: str
    tree: ast.Module
    names: Names
    qualified: dict[ast.AST, str]
    """`__qualname__` of every function and class."""
    postpones_annotations: bool
    bound: dict[str, list[ast.stmt]]
    """The statements of the module itself that bind each global name, those inside `if` and `try` too."""

    def function(self, code: types.CodeType) -> Function | None:
        """The `def` or `lambda` that was compiled to this code; None where the file has changed since."""
        here = [node for node in self.qualified if _first_line(node) == code.co_firstlineno]
        if code.co_name != "<lambda>":
            named = [node for node in here if getattr(node, "name", None) == code.co_name]
            return next((node for node in named if not isinstance(node, ast.ClassDef)), None)  # type: ignore[return-value]
        lambdas = [node for node in here if isinstance(node, ast.Lambda)]
        if len(lambdas) > 1:
            extent = _extent(code)
            lambdas = [
                node
                for node in lambdas
                if (_place(node.body) == extent if extent is not None else _returns_constant(node, code))
            ]
        alike = len({ast.dump(node) for node in lambdas}) == 1
        return lambdas[0] if alike else None

    def class_(self, type_: type) -> ast.ClassDef | None:
        """The statement that made a class: of several of that name, the one around its methods."""
        found = [
            node
            for node, name in self.qualified.items()
            if isinstance(node, ast.ClassDef) and name == type_.__qualname__
        ]
        lines = {
            function.__code__.co_firstlineno
            for function in functions_of_class(type_)
            if function.__code__.co_filename == self.path
        }
        around = [
            node for node in found if any(node.lineno <= line <= (node.end_lineno or line) for line in lines)
        ]
        candidates = around or found
        return candidates[-1] if candidates else None

    def bindings(self, name: str) -> list[ast.stmt]:
        """The statements that bind a global name; where there are none, the imports of everything."""
        return self.bound.get(name) or self.bound.get("*", [])


def source_file(path: str, what: str) -> SourceFile:
    """The file at a path, or what `linecache` knows under it; CannotSerialise naming `what` needs it."""
    lines = linecache.getlines(path)
    if not lines:
        raise CannotSerialise(
            f"{what} has no source text ({path})", next_step="define it in a file and run that"
        )
    return _parsed(path, "".join(lines))


def functions_of_class(type_: type) -> Iterator[types.FunctionType]:
    """The functions in the body of a class, out of their static, class and property wrappers."""
    for value in vars(type_).values():
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        parts = (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)
        yield from (part for part in parts if isinstance(part, types.FunctionType))


@functools.lru_cache(maxsize=64)
def _parsed(path: str, text: str) -> SourceFile:
    try:
        tree = ast.parse(text)
    except SyntaxError as failure:
        raise CannotSerialise(
            f"{path} cannot be parsed any more ({failure.msg})", next_step="restore it, or run it again"
        ) from failure
    postponed = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(alias.name == "annotations" for alias in node.names)
        for node in tree.body
    )
    bound: dict[str, list[ast.stmt]] = {}
    for statement in _statements(tree.body):
        for name in dict.fromkeys(bound_names([statement])):
            bound.setdefault(name, []).append(statement)
    return SourceFile(path, text, tree, resolve_names(tree), dict(_qualified(tree, "")), postponed, bound)


def _qualified(node: ast.AST, prefix: str) -> Iterator[tuple[ast.AST, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, DEFINITIONS):
            name = prefix + child.name
            yield child, name
            yield from _qualified(
                child, f"{name}." if isinstance(child, ast.ClassDef) else f"{name}.<locals>."
            )
        elif isinstance(child, ast.Lambda):
            yield child, f"{prefix}<lambda>"
            yield from _qualified(child, f"{prefix}<lambda>.<locals>.")
        else:
            yield from _qualified(child, prefix)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements at module level; compound ones are opened, and stand for themselves where they bind."""
    for statement in body:
        if isinstance(statement, ast.If | ast.Try | ast.With):
            parts = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
            parts += [handler.body for handler in getattr(statement, "handlers", [])]
            yield from (inner for part in parts for inner in _statements(part))
        else:
            yield statement


def _first_line(node: ast.AST) -> int:
    decorators = getattr(node, "decorator_list", [])
    return int(decorators[0].lineno if decorators else node.lineno)  # type: ignore[attr-defined]


def _place(node: ast.expr) -> tuple[int, int]:
    return (node.lineno, node.col_offset)


def _extent(code: types.CodeType) -> tuple[int, int] | None:
    """Where the expression of a lambda begins: the first place that its instructions name, if any."""
    places = [
        (line, column)
        for line, end_line, column, end_column in code.co_positions()
        if line is not None and column is not None and (line, column) != (end_line, end_column)
    ]
    return min(places, default=None)


def _returns_constant(node: ast.Lambda, code: types.CodeType) -> bool:
    """Whether this is the lambda: Python 3.12 names no place in one that only returns a constant."""
    if not isinstance(node.body, ast.Constant):
        return False
    value = node.body.value
    return any(type(value) is type(item) and value == item for item in code.co_consts)
