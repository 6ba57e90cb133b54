"""The user's own code in a script: functions, operators, and the tensors that they hold."""

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
_INLINE = 40
"""A tensor of the user's code that is longer than this in text goes to the file."""
_BUNDLES = "torchrepro_"
"""How the functions that register operators begin in a bundle."""


def source_lines(written: GraphText, inputs: Inputs, modules: set[str]) -> list[str]:
    """Return the user's functions with all that they need; add their imports to `modules`."""

    def tensor(found: re.Match[str]) -> str:
        value = written.constants[SOURCE_PREFIX + found["name"]]
        text = inputs.expression(found["name"], value.detach(), longest=_INLINE)
        if isinstance(value, torch.nn.Parameter):
            return parameter_text(text, value)
        return f"{text}.requires_grad_()" if value.requires_grad else text

    return [_TENSOR.sub(tensor, line) for line in _without_imports(written.source, modules)]


def operator_lines(operators: Operators, modules: set[str]) -> list[str]:
    """Return code that registers the user's operators; the import of a module registers the others."""
    entries = operators.entries
    modules |= {entry.module for entry in entries if not entry.in_source and entry.module}
    libraries = [entry.library for entry in entries if entry.library and not entry.module]
    loading = [f'torch.ops.load_library("{library}")' for library in libraries]
    own = [f"{registration_name(entry)}()" for entry in entries if entry.in_source]
    if not own:
        return loading
    # The tables at the end are for the bundle.
    text = operators.text.partition(f"\n{OPERATORS} = ")[0]
    # An operator is unregistered when its registration is garbage-collected.
    lines = [*_without_imports(text, modules), "", "", *loading, f"operators = [{', '.join(own)}]"]
    return [line.replace(_BUNDLES, "") for line in lines]


def _without_imports(source: str, modules: set[str]) -> list[str]:
    """Return the code below its first line, a heading; its imports are added to `modules`."""
    lines = source.rstrip().splitlines()
    lines[:1] = [""]
    for statement in reversed(ast.parse(source).body):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            written = ast.unparse(statement)
            modules |= {written.removeprefix("import ") if _SIMPLE.fullmatch(written) else written} - _IMPLIED
            del lines[statement.lineno - 1 : statement.end_lineno]
            # Together with the blank lines around it.
            while statement.lineno - 1 < len(lines) and not lines[statement.lineno - 1]:
                del lines[statement.lineno - 1]
    return "\n".join(lines).strip("\n").split("\n")


def parameter_text(expression: str, value: torch.nn.Parameter) -> str:
    """Return the expression of a parameter on the tensor that another expression makes."""
    frozen = "" if value.requires_grad else ", requires_grad=False"
    return f"torch.nn.Parameter({expression}{frozen})"
