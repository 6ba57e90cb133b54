"""Cutting: a case's function with a graph break before each of its statements, inner functions included."""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import textwrap
from dataclasses import replace

import torch

from tests.frontend.corpus.registry import Case

CUT = "_graph_break_"


def cut(case: Case) -> Case | None:
    """The same case in pieces; None where the function has a closure, which text cannot give it back."""
    function = case.function
    if function.__closure__:
        return None
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    _cut_blocks(definition)
    text = ast.unparse(ast.fix_missing_locations(tree))
    name = f"<{case} in pieces>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    function.__globals__[CUT] = torch._dynamo.graph_break
    made: dict[str, object] = {}
    code = compile(text, name, "exec", flags=__future__.annotations.compiler_flag)
    exec(code, function.__globals__, made)
    return replace(case, function=made[definition.name], breaks=None)  # type: ignore[arg-type]


def _cut_blocks(node: ast.AST) -> None:
    if isinstance(node, ast.ClassDef):
        return
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            setattr(node, name, [piece for statement in block for piece in _with_cut(statement)])
    for name in ("handlers", "cases"):
        for inner in getattr(node, name, []):
            _cut_blocks(inner)


def _with_cut(statement: ast.stmt) -> list[ast.stmt]:
    _cut_blocks(statement)
    match statement:
        case ast.Global() | ast.Nonlocal() | ast.Expr(ast.Constant()):
            return [statement]
    call = ast.Expr(ast.Call(ast.Name(CUT, ast.Load()), [], []))
    return [ast.copy_location(call, statement), statement]
