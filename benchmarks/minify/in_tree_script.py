"""Read the size of what torch's own minifier wrote: its scripts are parsed, never imported."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True, slots=True)
class ScriptSize:
    ops: int
    inputs: int
    elements: int
    lines: int


def script_size(path: Path) -> ScriptSize:
    """Operations, inputs and elements of the inputs, counted as we count our own."""
    text = path.read_text()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    statements = [statement for node in functions if node.name == "forward" for statement in node.body]
    inputs = [call for node in functions if node.name == "load_args" for call in _inputs(node)]
    known = dict(symbol for call in inputs for symbol in _symbols(call))
    return ScriptSize(
        ops=sum(map(_is_op, statements)),
        inputs=len(inputs),
        elements=sum(_elements(call, known) for call in inputs),
        lines=len(text.splitlines()),
    )


def _is_op(statement: ast.stmt) -> bool:
    """One node of the graph is one statement; `x = None` frees a value and `self.x` reads a constant."""
    if isinstance(statement, ast.AugAssign):
        return True
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Call)
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        return False
    return not isinstance(statement.value, ast.Constant | ast.Attribute | ast.Name)


def _inputs(load_args: ast.FunctionDef) -> list[ast.Call]:
    """`reader.tensor(...)`, `reader.symint(...)` and so on: one for an input, a storage being none."""
    calls = [node for node in ast.walk(load_args) if isinstance(node, ast.Call)]
    return [call for call in calls if _method(call) not in ("", "storage")]


def _symbols(call: ast.Call) -> list[tuple[str, int]]:
    """The name of a size that may vary, and its value here: `reader.symint(8, expr='s27')`."""
    if _method(call) != "symint":
        return []
    return [(ast.literal_eval(word.value), ast.literal_eval(call.args[0])) for word in call.keywords]


def _elements(call: ast.Call, known: Mapping[str, int]) -> int:
    if _method(call) != "tensor" or not isinstance(call.args[1], ast.Tuple):
        return 0
    return math.prod(_size(size, known) for size in call.args[1].elts)


def _size(size: ast.expr, known: Mapping[str, int]) -> int:
    if isinstance(size, ast.Name):
        return known[size.id]
    if isinstance(size, ast.BinOp):
        return _ARITHMETIC[type(size.op)](_size(size.left, known), _size(size.right, known))
    return int(ast.literal_eval(size))


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""
