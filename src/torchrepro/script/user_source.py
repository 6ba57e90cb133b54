"""The user's own code in a script: functions with all that they need, and operators."""

from __future__ import annotations

import ast
import re

import torch

from torchrepro.graph_text.printer import GraphText
from torchrepro.script.inputs import Inputs
from torchrepro.user_code.graph_source import SOURCE_PREFIX
from torchrepro.user_code.operators import OPERATORS, Operators, registration_name

_TENSOR = re.compile(r"""_tensor\(['"](?P<name>\w+)['"]\)""")
_SIMPLE = re.compile(r"import [\w.]+")
_IMPLIED = {"torch", "from __future__ import annotations"}
_BUNDLES = "torchrepro_"
"""How the functions that register operators begin in a bundle."""
_INLINE = 40
"""A tensor that is longer than this in text goes to the file."""


def source_lines(written: GraphText, inputs: Inputs) -> tuple[list[str], set[str]]:
    """The code without its imports, and the modules that it imports."""

    def tensor(found: re.Match[str]) -> str:
        value = written.constants[SOURCE_PREFIX + found["name"]]
        text = inputs.expression(found["name"], value.detach(), longest=_INLINE)
        if isinstance(value, torch.nn.Parameter):
            frozen = "" if value.requires_grad else ", requires_grad=False"
            return f"torch.nn.Parameter({text}{frozen})"
        return f"{text}.requires_grad_()" if value.requires_grad else text

    lines, modules = _without_imports(written.source)
    return [_TENSOR.sub(tensor, line) for line in lines], modules


def operator_lines(operators: Operators) -> tuple[list[str], set[str]]:
    """Code that registers the user's operators, and modules whose import registers the others."""
    modules = {entry.module for entry in operators.entries if not entry.in_source and entry.module}
    calls = [
        f'torch.ops.load_library("{entry.library}")'
        for entry in operators.entries
        if entry.library and not entry.module
    ]
    own = [f"{registration_name(entry)}()" for entry in operators.entries if entry.in_source]
    if not own:
        return calls, modules
    # The tables at the end are for the bundle.
    lines, needed = _without_imports(operators.text.partition(f"\n{OPERATORS} = ")[0])
    while lines and not lines[-1]:
        lines.pop()
    # Whoever does not hold the result loses the operator again.
    lines += ["", "", *calls, f"operators = [{', '.join(own)}]"]
    return [line.replace(_BUNDLES, "") for line in lines], modules | needed


def _without_imports(source: str) -> tuple[list[str], set[str]]:
    """The code below its first line, which says whose it is; its imports apart, as `document` takes them."""
    lines = source.rstrip().splitlines()
    lines[:1] = [""]
    modules: set[str] = set()
    for statement in reversed(ast.parse(source).body):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            written = ast.unparse(statement)
            modules |= {written.removeprefix("import ")} if _SIMPLE.fullmatch(written) else {written}
            del lines[statement.lineno - 1 : statement.end_lineno]
            # With the blank lines that stood around it.
            while statement.lineno - 1 < len(lines) and not lines[statement.lineno - 1]:
                del lines[statement.lineno - 1]
    while lines and not lines[0]:
        del lines[0]
    return lines, modules - _IMPLIED
