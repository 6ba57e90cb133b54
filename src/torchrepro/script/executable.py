"""The text of a graph as Python that runs with torch alone: modules in place of the data-only classes.

The words of the graph text that are no Python (`const`, `named`, `enum`, ...) are replaced by what they stand
for; annotations and the user's source lines stay as comments.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from torchrepro.nouns.errors import GraphTextError

_INDENT = "    "


def executable_modules(text: str, hints: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Source of `torch.nn.Module` classes, the last of them called `Graph`, and the user modules it imports.

    `hints` are the values of symbols: a symbolic number that stands in the text becomes its value.
    """
    return _executable(ast.parse(text), text, hints)


def executable_call(text: str, hints: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The same for a graph that is one call of the user's code.

    `Graph.function` is what it calls. The forward is given that function, or a compiled form of it, and calls
    it with the arguments.
    """
    tree = ast.parse(text)
    (graph,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    (forward,) = (node for node in graph.body if isinstance(node, ast.FunctionDef))
    calls = [
        node
        for statement in forward.body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and not _is_input(statement)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and _is_user_call(node.func)
    ]
    if len(calls) != 1:
        raise GraphTextError("the graph is not one call", next_step="use torchrepro check instead")
    function, calls[0].func = calls[0].func, ast.Name("call", ast.Load())
    forward.args.args.insert(1, ast.arg("call"))
    modules, imports = _executable(tree, text, hints)
    words = _PlainWords(hints)
    called = ast.unparse(words.visit(function))
    method = f"\n\n{_INDENT}def function(self):\n{_INDENT * 2}return {called}"
    return modules + method, sorted({*imports, *words.imports})


def _executable(tree: ast.Module, text: str, hints: Mapping[str, Any]) -> tuple[str, list[str]]:
    comments = {
        number: line.strip()
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip().startswith("#") and number > 1
    }
    writer = _Writer(comments, hints)
    (graph,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    blocks = list(writer.module(graph, "Graph"))
    return "\n\n\n".join("\n".join(block) for block in blocks), sorted(writer.imports)


def _is_user_call(function: ast.expr) -> bool:
    """Whether this is what the graph calls, and no word of the graph text."""
    if isinstance(function, ast.Call):
        return isinstance(function.func, ast.Name) and function.func.id == "user"
    return isinstance(function, ast.Attribute | ast.Subscript)


class _Writer:
    def __init__(self, comments: Mapping[int, str], hints: Mapping[str, Any]) -> None:
        self._comments = comments
        self._words = _PlainWords(hints)
        self.imports = self._words.imports

    def module(self, tree: ast.ClassDef, name: str) -> Iterator[list[str]]:
        """The classes nested in this one, then the class itself."""
        state: list[str] = []
        forward: list[str] = []
        nested: dict[str, str] = {}
        for statement in tree.body:
            if isinstance(statement, ast.ClassDef):
                path, same_as = _keyword(statement, "at") or statement.name, _keyword(statement, "same_as")
                if same_as is None:
                    nested[path] = f"{name}_{statement.name}"
                    yield from self.module(statement, nested[path])
                    state.append(f"attach(self, {path!r}, {nested[path]}())")
                else:
                    state.append(f"attach(self, {path!r}, reach(self, {same_as!r}))")
            elif isinstance(statement, ast.FunctionDef):
                forward = list(self._forward(statement))
            else:
                state.append(self._state(statement))
        lines = [f"class {name}(torch.nn.Module):"]
        if state:
            lines += [f"{_INDENT}def __init__(self):", f"{_INDENT * 2}super().__init__()"]
            lines += [f"{_INDENT * 2}{line}" for line in state] + [""]
        yield lines + [f"{_INDENT}{line}" if line else "" for line in forward]

    def _state(self, statement: ast.stmt) -> str:
        """One attribute of the module: a tensor of the bundle, a leaf module or a plain value."""
        match statement:
            case ast.AnnAssign(target=target, value=value) if value is not None:
                path = _path(target)
            case ast.Assign(targets=[target], value=value):
                path = _path(target)
            case ast.Pass():
                return "pass"
            case _:
                raise _unknown(statement)
        match value:
            case ast.Call(func=ast.Name(id="const" | "parameter"), args=[ast.Constant(value=str(key))]):
                return f"attach(self, {path!r}, value({f'constant.{key}'!r}))"
            case ast.Call(
                func=ast.Name(id="buffer" | "temporary_buffer"), args=[ast.Constant(value=str(key))]
            ):
                return f"attach(self, {path!r}, value({f'constant.{key}'!r}), buffer=True)"
        return f"attach(self, {path!r}, {self._expression(value)})"

    def _forward(self, tree: ast.FunctionDef) -> Iterator[str]:
        defaults = [None] * (len(tree.args.args) - len(tree.args.defaults)) + list(tree.args.defaults)
        parameters = [
            self._parameter(argument.arg, argument.annotation, default)
            for argument, default in zip(tree.args.args, defaults, strict=True)
            if argument.arg != "self"
        ]
        body: list[str] = []
        line = tree.body[0].lineno if tree.body else tree.lineno
        for statement in tree.body:
            while line < statement.lineno:
                if line in self._comments:
                    body.append(self._comments[line])
                line += 1
            line = statement.lineno + 1
            if _is_input(statement):
                assert isinstance(statement, ast.Assign | ast.AnnAssign)
                target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
                annotation = None if isinstance(statement, ast.Assign) else statement.annotation
                parameters.append(self._parameter(ast.unparse(target), annotation, statement.value))
            else:
                body.append(self._statement(statement))
        first = tree.body[0].lineno if tree.body else 0
        leading = [text for number, text in self._comments.items() if tree.lineno < number < first]
        yield "def forward("
        yield f"{_INDENT}self,"
        yield from (f"{_INDENT}{parameter}" for parameter in parameters)
        yield "):"
        yield from (f"{_INDENT}{line}" for line in leading + (body or ["return ()"]))

    def _parameter(self, name: str, annotation: ast.expr | None, default: ast.expr | None) -> str:
        text = name
        if isinstance(default, ast.Call):
            text += "".join(
                f"={self._expression(keyword.value)}"
                for keyword in default.keywords
                if keyword.arg == "default"
            )
        return f"{text}," + (f"  # {ast.unparse(annotation)}" if annotation is not None else "")

    def _statement(self, statement: ast.stmt) -> str:
        written = self._written_in_place(statement)
        if written:
            return written
        match statement:
            case ast.AnnAssign(target=target, value=value, annotation=note) if value is not None:
                return f"{ast.unparse(target)} = {self._expression(value)}  # {ast.unparse(note)}"
            case ast.Assign(targets=[target], value=value):
                return f"{ast.unparse(target)} = {self._expression(value)}"
            case ast.Return(value=value) if value is not None:
                return f"return {self._expression(value)}"
            case ast.Pass():
                return "pass"
        raise _unknown(statement)

    def _written_in_place(self, statement: ast.stmt) -> str:
        """`x[i] = y` and `x += y`: as a call of `operator` capture would break the graph there."""
        match statement:
            case (
                ast.AnnAssign(target=target, value=ast.Call() as call)
                | ast.Assign(targets=[target], value=ast.Call() as call)
            ):
                name = _operator(call.func)
                parts = [self._expression(argument) for argument in call.args]
                if name == "setitem" and len(parts) == 3:
                    return f"{parts[0]}[{parts[1]}] = {parts[2]}; {ast.unparse(target)} = {parts[0]}"
                if name in _AUGMENTED and len(parts) == 2 and parts[0].isidentifier():
                    return f"{parts[0]} {_AUGMENTED[name]} {parts[1]}; {ast.unparse(target)} = {parts[0]}"
        return ""

    def _expression(self, tree: ast.expr) -> str:
        return ast.unparse(self._words.visit(tree))


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
            case "named", [_, expression]:
                return expression
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
            case "triton_kernel", _:
                raise GraphTextError(
                    "a Triton kernel of the user is called through torch's own table",
                    next_step="use torchrepro check instead",
                )
            case "user", [ast.Constant(value=str(path))]:
                module, _, name = path.partition(":")
                self.imports.add(module)
                return _parsed(f"{module}.{name}")
        return node

    def _hint(self, expression: ast.expr) -> Any:
        import sympy

        names = {name: sympy.Integer(hint) for name, hint in self._hints.items() if hint is not None}
        text = ast.unparse(expression)
        found = sympy.sympify(text, locals=names) if set(_names(expression)) <= set(names) else None
        if found is None or not found.is_number:
            raise GraphTextError(
                f"{text} has no value before the graph runs", next_step="use torchrepro check instead"
            )
        return int(found)


_AUGMENTED = {
    "iadd": "+=",
    "isub": "-=",
    "imul": "*=",
    "itruediv": "/=",
    "ifloordiv": "//=",
    "imod": "%=",
    "ipow": "**=",
    "iand": "&=",
    "ior": "|=",
    "ixor": "^=",
    "imatmul": "@=",
}


def _operator(function: ast.expr) -> str:
    match function:
        case ast.Attribute(value=ast.Name(id="operator"), attr=name):
            return name
    return ""


def _names(tree: ast.expr) -> list[str]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _is_input(statement: ast.stmt) -> bool:
    """An input that stands among the other nodes."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return False
    value = statement.value
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "named":
        value = value.args[1]
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "arg"


def _path(target: ast.expr) -> str:
    match target:
        case ast.Subscript(slice=ast.Constant(value=str(path))):
            return path
    return ast.unparse(target).removeprefix("self.")


def _keyword(tree: ast.ClassDef, name: str) -> str | None:
    for keyword in tree.keywords:
        if keyword.arg == name and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return None


def _unknown(tree: ast.stmt) -> GraphTextError:
    return GraphTextError(f"line {tree.lineno}: {ast.unparse(tree)} is no part of a graph")
