"""The text of a graph as Python that runs with torch alone: modules in place of the data-only classes.

The words of the graph text that are no Python (`const`, `named`, `enum`, ...) are replaced by what they stand
for; notes and the user's source lines stay as comments. Lines without such a word are copied as they are, so
a graph of thousands of nodes costs no more than parsing it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchrepro.graph_text.syntax import (
    AUGMENTED,
    GraphSyntax,
    Line,
    State,
    dotted_name,
    operation,
    read_syntax,
    symbol_names,
)
from torchrepro.nouns.errors import GraphTextError
from torchrepro.script.layout import INDENT, indented

_WORD = re.compile(
    r"\b(?:named|const|enum|named_tuple|sym|symfloat|symbool|call_method|call_module|get_attr|user|source"
    r"|triton_\w+|numpy_\w+)\b|\bself\["
)
_AUGMENTED = {f"operator.{function.__name__}": sign for function, sign in AUGMENTED.items()}


@dataclass(frozen=True, slots=True)
class Executable:
    """A graph as Python."""

    syntax: GraphSyntax
    classes: list[list[str]]
    """Lines of `torch.nn.Module` classes, the last of them called `Graph`."""
    imports: set[str] = field(default_factory=set)
    """Modules of the user that the graph calls."""


def executable_graph(text: str, hints: Mapping[str, Any], *, whole_call: bool = False) -> Executable:
    """Return the graph as modules; `hints` are the values of symbols, which symbolic numbers become.

    A graph that is one call of the user's code (`whole_call`) is given the function, or a compiled form of
    it, as its first argument `call`; `Graph.function` returns what the graph itself calls.
    """
    syntax = read_syntax(text)
    writer = _Writer(text, hints, _only_call(syntax) if whole_call else None)
    return Executable(syntax, list(writer.classes(syntax, "Graph")), writer.words.imports)


def _only_call(graph: GraphSyntax) -> Line:
    variables = [line.variable for line in graph.lines]
    calls = [
        line
        for line in graph.lines
        if line.variable and operation(line, variables).op in ("call_function", "call_module")
    ]
    if len(calls) != 1:
        raise GraphTextError("the graph is not one call", next_step="use torchrepro check instead")
    return calls[0]


class _Writer:
    def __init__(self, text: str, hints: Mapping[str, Any], call: Line | None) -> None:
        self._source = [line.encode() for line in text.split("\n")]
        self._call = call
        self.words = _PlainWords(hints)

    def classes(self, graph: GraphSyntax, name: str) -> Iterator[list[str]]:
        """The classes nested in this one, then the class itself."""
        state: list[str] = []
        for item in graph.state:
            if isinstance(item, State):
                state.append(self._state(item))
            elif item.same_as is not None:
                state.append(f"attach(self, {item.path!r}, reach(self, {item.same_as!r}))")
            else:
                yield from self.classes(item, f"{name}_{item.name}")
                state.append(f"attach(self, {item.path!r}, {name}_{item.name}())")
        lines = []
        if state:
            lines += ["def __init__(self):", *indented(["super().__init__()", *state]), ""]
        lines += self._forward(graph)
        if self._call in graph.lines:
            assert self._call is not None
            assert isinstance(self._call.value, ast.Call)
            called = self._expression(self._call.value.func)
            lines += ["", "def function(self):", f"{INDENT}return {called}"]
        yield [f"class {name}(torch.nn.Module):", *indented(lines)]

    def _state(self, state: State) -> str:
        """One attribute of the module: a tensor of the bundle, a leaf module or a plain value."""
        match state.value:
            case ast.Call(func=ast.Name(id="const" | "parameter"), args=[ast.Constant(value=str(key))]):
                return f"attach(self, {state.path!r}, value({f'constant.{key}'!r}))"
            case ast.Call(
                func=ast.Name(id="buffer" | "temporary_buffer"), args=[ast.Constant(value=str(key))]
            ):
                return f"attach(self, {state.path!r}, value({f'constant.{key}'!r}), buffer=True)"
        return f"attach(self, {state.path!r}, {self._expression(state.value)})"

    def _forward(self, graph: GraphSyntax) -> Iterator[str]:
        yield "def forward("
        yield f"{INDENT}self,"
        if self._call in graph.lines:
            yield f"{INDENT}call,"
        for line in graph.inputs:
            yield f"{INDENT}{line.variable}{self._default(line)},{self._note(line)}"
        yield "):"
        comment = None
        for line in graph.lines:
            if not line.is_input:
                if line.comment != comment and line.variable:
                    comment = line.comment
                    yield f"{INDENT}# {comment}"
                yield INDENT + self._statement(line)
        if len(graph.inputs) == len(graph.lines):
            yield f"{INDENT}return ()"

    def _default(self, line: Line) -> str:
        keywords = line.value.keywords if isinstance(line.value, ast.Call) else []
        return "".join(f"={self._expression(item.value)}" for item in keywords if item.arg == "default")

    def _note(self, line: Line) -> str:
        return "" if line.note is None else f"  # {self._copied(line.note)}"

    def _statement(self, line: Line) -> str:
        assert line.value is not None
        if not line.variable:
            return f"return {self._expression(line.value)}"
        if line is self._call and isinstance(line.value, ast.Call):
            arguments = [self._expression(argument) for argument in line.value.args]
            arguments += [f"{item.arg}={self._expression(item.value)}" for item in line.value.keywords]
            return f"{line.variable} = call({', '.join(arguments)})"
        written = self._written_in_place(line.variable, line.value)
        return written or f"{line.variable} = {self._expression(line.value)}{self._note(line)}"

    def _written_in_place(self, variable: str, value: ast.expr) -> str:
        """`x[i] = y` and `x += y`: as a call of `operator` capture would break the graph there."""
        name = dotted_name(value.func) or "" if isinstance(value, ast.Call) else ""
        if not name.startswith("operator.") or not isinstance(value, ast.Call):
            return ""
        parts = [self._expression(argument) for argument in value.args]
        if name == "operator.setitem" and len(parts) == 3:
            return f"{parts[0]}[{parts[1]}] = {parts[2]}; {variable} = {parts[0]}"
        if name in _AUGMENTED and len(parts) == 2 and parts[0].isidentifier():
            return f"{parts[0]} {_AUGMENTED[name]} {parts[1]}; {variable} = {parts[0]}"
        return ""

    def _expression(self, tree: ast.expr) -> str:
        copied = self._copied(tree)
        return ast.unparse(self.words.visit(tree)) if _WORD.search(copied) else copied

    def _copied(self, tree: ast.expr) -> str:
        """The expression as it stands in the text."""
        if tree.end_lineno != tree.lineno:
            return ast.unparse(tree)
        return self._source[tree.lineno - 1][tree.col_offset : tree.end_col_offset].decode()


class _PlainWords(ast.NodeTransformer):
    """Replaces the words of the graph text by Python."""

    def __init__(self, hints: Mapping[str, Any]) -> None:
        self._hints = hints
        self.imports: set[str] = set()

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        match node:
            case ast.Subscript(value=ast.Name(id="self"), slice=ast.Constant(value=str(path))):
                return _parsed(f"reach(self, {path!r})")
        self.generic_visit(node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        match node:
            case ast.Attribute(value=ast.Name(id="source"), attr=name):
                return ast.Name(name, ast.Load())
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        word = node.func.id if isinstance(node.func, ast.Name) else ""
        match word, node.args:
            case "const", [ast.Constant(value=str(key))]:
                return _parsed(f"value({f'constant.{key}'!r})")
            case "enum", [ast.Constant(value=str(path)), ast.Constant(value=str(name))]:
                return _parsed(f"{path}.{name}")
            case "named_tuple", [ast.Constant(value=str(path)), *items]:
                return ast.Call(func=_parsed(path), args=[ast.Tuple(elts=items, ctx=ast.Load())], keywords=[])
            case (("sym" | "symfloat" | "symbool"), [expression]):
                return ast.Constant(value=self._hint(expression))
            case "call_method", [ast.Constant(value=str(method)), owner, *rest]:
                function = ast.Attribute(value=owner, attr=method, ctx=ast.Load())
                return ast.Call(func=function, args=rest, keywords=node.keywords)
            case "call_module", [ast.Constant(value=str(path)), *rest]:
                return ast.Call(func=_parsed(f"reach(self, {path!r})"), args=rest, keywords=node.keywords)
            case "get_attr", [ast.Constant(value=str(path))]:
                return _parsed(f"reach(self, {path!r})")
            case "user", [ast.Constant(value=str(path))]:
                module, _, name = path.partition(":")
                self.imports.add(module)
                return _parsed(f"{module}.{name}")
        if word.startswith(("triton_", "numpy_")):
            what = "a Triton kernel of the user" if word.startswith("triton_") else "NumPy"
            raise GraphTextError(
                f"{what} is called through a table of torch's own", next_step="use torchrepro check instead"
            )
        return node

    def _hint(self, expression: ast.expr) -> Any:
        import sympy

        names = {name: sympy.Integer(hint) for name, hint in self._hints.items() if hint is not None}
        known = set(symbol_names(expression)) <= set(names)
        found = sympy.sympify(ast.unparse(expression), locals=names) if known else None
        if found is None or not found.is_number:
            raise GraphTextError(
                f"{ast.unparse(expression)} has no value before the graph runs",
                next_step="use torchrepro check instead",
            )
        return int(found)


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
