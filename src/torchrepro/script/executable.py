"""The text of a graph as Python that runs with torch alone: modules in place of the data-only classes.

Expressions are copied, the words of the graph text in them are replaced or are functions of the script
(`standalone_runtime.py`); notes and the user's source lines stay as comments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torchrepro.bundle.user_calls import CALLEE
from torchrepro.graph_text.syntax import GraphSyntax, Line, State, read_syntax
from torchrepro.nouns.errors import GraphTextError
from torchrepro.script.layout import INDENT, indented

_INSTEAD = "use torchrepro check instead"
_WORDS = {
    re.compile(pattern): plain
    for pattern, plain in {
        r"\b(?:const|parameter|buffer|temporary_buffer)\(([\"'])": r"value_of(\1constant.",
        r"\benum\([\"']([\w.]+)[\"'], [\"'](\w+)[\"']\)": r"\1.\2",
        r"\bnamed_tuple\([\"']([\w.]+)[\"']": r"named_tuple(\1",
        r"\buser\([\"']([\w.]+):([\w.]+)[\"']\)": r"\1.\2",
        r"\bself\[([\"'].*?[\"'])\]": r"reach(self, \1)",
        r"\bcall_module\(([\"'].*?[\"'])(?:, )?": r"reach(self, \1)(",
        r"\boperator\.setitem\(": "set_item(",
    }.items()
}
_TABLES = {"triton_": "a Triton kernel of the user", "numpy_": "NumPy"}
_SYMBOLIC = re.compile(r"\bsym(?:float|bool)?\(")


class GraphClasses:
    """A graph as Python: modules in place of the data-only classes."""

    def __init__(self, text: str, hints: Mapping[str, float | None], *, whole_call: bool) -> None:
        self.syntax = read_syntax(text)
        self.imports = set(re.findall(r'\buser\("([\w.]+):', text))
        """Modules of the user that the graph calls."""
        self._source = [line.encode() for line in text.split("\n")]
        self._hints = hints
        self._call: Line | None = None
        if whole_call:
            lines = [line for line in self.syntax.lines if line.variable and not line.is_input]
            calls = [line for line in lines if isinstance(line.value, ast.Call)]
            callees = [line for line in lines if line.variable == CALLEE]
            if not callees and len(calls) != 1:
                raise GraphTextError("the graph is not one call", next_step=_INSTEAD)
            self._call = (callees or calls)[0]

    def classes(self, graph: GraphSyntax, name: str = "Graph") -> Iterator[list[str]]:
        """Yield the classes nested in this one, then the class itself.

        A graph that is one call of the user's code is given the function, or a compiled form of it, as its
        first argument `call`; `Graph.function` returns what the graph itself calls.
        """
        state: list[str] = []
        for item in graph.state:
            if isinstance(item, State):
                made = self._expression(item.value)
            elif item.same_as is not None:
                made = f"reach(self, {item.same_as!r})"
            else:
                yield from self.classes(item, f"{name}_{item.name}")
                made = f"{name}_{item.name}()"
            buffer = isinstance(item, State) and re.match(r"(temporary_)?buffer\(", self._copied(item.value))
            state.append(f"attach(self, {item.path!r}, {made}{', buffer=True' if buffer else ''})")
        lines = ["def __init__(self):", *indented(["super().__init__()", *state]), ""] if state else []
        call = self._call if self._call in graph.lines else None
        parameters = ["self,", *(["call,"] if call else []), *map(self._parameter, graph.inputs)]
        lines += ["def forward(", *indented(parameters), "):", *indented(list(self._statements(graph)))]
        if call is not None and call.value is not None:
            function = call.value.func if isinstance(call.value, ast.Call) else call.value
            lines += ["", "def function(self):", f"{INDENT}return {self._expression(function)}"]
        yield [f"class {name}(torch.nn.Module):", *indented(lines)]

    def _parameter(self, line: Line) -> str:
        keywords = line.value.keywords if isinstance(line.value, ast.Call) else []
        given = [f"={self._expression(item.value)}" for item in keywords if item.arg == "default"]
        return f"{line.variable}{''.join(given)},{self._note(line)}"

    def _statements(self, graph: GraphSyntax) -> Iterator[str]:
        comment = None
        for line in graph.lines:
            if line.is_input or line.value is None:
                continue
            if line.comment != comment and line.variable:
                comment = line.comment
                yield f"# {comment}"
            value = self._expression(line.value)
            if line is self._call:
                called = line.value.func if isinstance(line.value, ast.Call) else line.value
                value = f"call{value.removeprefix(self._expression(called))}"
            yield f"{line.variable} = {value}{self._note(line)}" if line.variable else f"return {value}"
        if len(graph.inputs) == len(graph.lines):
            yield "return ()"

    def _note(self, line: Line) -> str:
        return "" if line.note is None else f"  # {self._copied(line.note)}"

    def _expression(self, tree: ast.expr) -> str:
        """Return the expression with the words of the graph text replaced by Python."""
        text = self._copied(tree)
        for word, what in _TABLES.items():
            if re.search(rf"\b{word}\w+\(", text):
                raise GraphTextError(f"{what} is called through a table of torch's own", next_step=_INSTEAD)
        for pattern, plain in _WORDS.items():
            text = pattern.sub(plain, text)
        if _SYMBOLIC.search(text):
            text = ast.unparse(_WithHints(self._hints).visit(ast.parse(text)))
        return text

    def _copied(self, tree: ast.expr) -> str:
        """Return the expression as it stands in the text."""
        if tree.end_lineno != tree.lineno:
            return ast.unparse(tree)
        return self._source[tree.lineno - 1][tree.col_offset : tree.end_col_offset].decode()


class _WithHints(ast.NodeTransformer):
    """Replaces symbolic numbers by the values that their symbols had."""

    def __init__(self, hints: Mapping[str, float | None]) -> None:
        self._hints = hints

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if not (isinstance(node.func, ast.Name) and node.func.id in ("sym", "symfloat", "symbool")):
            return node
        from torchrepro.graph_text.symbols import to_sympy

        return ast.Constant(value=int(to_sympy(node.args[0], self._hint)))

    def _hint(self, name: str) -> Any:
        import sympy

        if self._hints.get(name) is None:
            raise GraphTextError(f"{name} has no value before the graph runs", next_step=_INSTEAD)
        return sympy.Integer(self._hints[name])
