"""From the text of a graph to its picture. The text is parsed as Python, never run, and needs no torch.

A reader of graphs (`bundle/graph_text/`) wants the operators themselves, a picture only their names. So a
stranger's bundle, with operators that are not installed here, is drawn like any other, in milliseconds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchrepro.nouns.errors import GraphTextError
from torchrepro.report.contents import Node, Picture

# As `graph_text/source_lines.py` writes where a node comes from; a test holds the two together.
_COMMENT = re.compile(
    r"(?P<where>.+?:\d+ in .+?)(?: of (?P<module>\S+))?(?P<code>: .*|:)\Z|source unknown, in (?P<alone>\S+)\Z"
)
_DTYPE = re.compile(r"(bf|f|i|u|c)(\d+)")
_DTYPES = {"bf": "bfloat", "f": "float", "i": "int", "u": "uint", "c": "complex"}


def picture_of(title: str, graph_text: str, *, guilty: str = "") -> Picture:
    """The picture of a graph; nested graphs stand in it under their names, like modules."""
    try:
        tree = ast.parse(graph_text)
        match tree.body:
            case [ast.ClassDef(name="Graph") as definition]:
                return Picture(title, tuple(_Reader(graph_text, guilty).nodes(definition)))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as failure:
        raise GraphTextError(
            f"the graph cannot be drawn: {failure}", next_step="take the bundle again"
        ) from None
    raise GraphTextError("the text holds no graph", next_step="take the bundle again")


class _Reader:
    """Reads one text, line by line."""

    def __init__(self, text: str, guilty: str) -> None:
        self._lines = text.split("\n")
        self._guilty = guilty

    def nodes(self, definition: ast.ClassDef, prefix: str = "") -> Iterator[Node]:
        for statement in definition.body:
            if isinstance(statement, ast.ClassDef) and not _is_repeated(statement):
                yield from self.nodes(statement, f"{prefix}{_path_of(statement)}.")
            elif isinstance(statement, ast.FunctionDef):
                yield from self._forward(statement, prefix)

    def _forward(self, definition: ast.FunctionDef, prefix: str) -> Iterator[Node]:
        names: dict[str, str] = {}
        around = prefix.rstrip(".")
        for parameter in definition.args.args[1:]:
            names[parameter.arg] = prefix + parameter.arg
            yield Node(
                prefix + parameter.arg, "input", "input", module=around, shape=_shape(parameter.annotation)
            )
        line, source, module = definition.lineno, "", ""
        for statement in definition.body:
            for number in range(line, statement.lineno):
                source, module = _told(self._lines[number - 1], source, module)
            line = statement.lineno
            match statement:
                case ast.Assign(targets=[ast.Name(id=variable)], value=value):
                    annotation = None
                case ast.AnnAssign(target=ast.Name(id=variable), value=ast.expr() as value):
                    annotation = statement.annotation
                case ast.Return(value=ast.expr() as value):
                    yield Node(f"{prefix}output", "output", "output", _reads(value, names), module=around)
                    continue
                case _:
                    continue
            name, value = _named(variable, value)
            op, kind = _operation(value, names)
            yield Node(
                name=prefix + name,
                op=op,
                kind=kind,
                inputs=_reads(value, names),
                module=".".join(part for part in (around, module if kind == "op" else "") if part),
                source=source if kind == "op" else "",
                shape=_shape(annotation),
                guilty=bool(self._guilty) and not prefix and name == self._guilty,
            )
            names[variable] = prefix + name


def _is_repeated(definition: ast.ClassDef) -> bool:
    """Whether a nested graph is said to be the same as another, which is drawn already."""
    return any(keyword.arg == "same_as" for keyword in definition.keywords)


def _path_of(definition: ast.ClassDef) -> str:
    for keyword in definition.keywords:
        if keyword.arg == "at" and isinstance(keyword.value, ast.Constant):
            return str(keyword.value.value)
    return definition.name


def _told(line: str, source: str, module: str) -> tuple[str, str]:
    """The source and the module that a comment tells; as before where the line is none."""
    text = line.strip()
    if not text.startswith("#"):
        return source, module
    found = _COMMENT.match(text.removeprefix("#").strip())
    if found is None:
        return "", ""
    if found["alone"]:
        return "", found["alone"]
    return (found["where"] + found["code"]).rstrip(), found["module"] or ""


def _named(variable: str, value: ast.expr) -> tuple[str, ast.expr]:
    """A node whose name could not be a variable is written `named("name", ...)`."""
    match value:
        case ast.Call(func=ast.Name(id="named"), args=[ast.Constant(value=str(name)), inner]):
            return name, inner
    return variable, value


def _operation(value: ast.expr, names: dict[str, str]) -> tuple[str, str]:
    """What a node computes, in the words of `GuiltyOp.op`, and its kind."""
    match value:
        case ast.BinOp(op=operator) | ast.UnaryOp(op=operator):
            return f"operator.{_OPERATORS.get(type(operator), type(operator).__name__.lower())}", "op"
        case ast.Compare(ops=[operator]):
            return f"operator.{_OPERATORS.get(type(operator), type(operator).__name__.lower())}", "op"
        case ast.Subscript():
            return "operator.getitem", "op"
        case ast.Call(func=ast.Name(id="get_attr"), args=[ast.Constant(value=str(path)), *_]):
            return path, "constant"
        case ast.Call(func=ast.Name(id="call_method"), args=[ast.Constant(value=str(method)), *_]):
            return f".{method}", "op"
        case ast.Call(func=ast.Name(id="call_module"), args=[ast.Constant(value=str(path)), *_]):
            return path, "op"
        case ast.Call(func=ast.Name(id="arg")):
            return "input", "input"
        case ast.Call(func=ast.Call(args=[ast.Constant(value=str(function)), *_])):
            return function, "op"  # user("package.module:function")(...)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=base), attr=method)) if base in names:
            return f".{method}", "op"
        case ast.Call(func=function):
            return ast.unparse(function).removeprefix("torch.ops.").removeprefix("self."), "op"
        case ast.Attribute(value=ast.Name(id=base), attr=attribute) if base in names:
            return f"getattr {attribute}", "op"
        case ast.Attribute():
            return ast.unparse(value).removeprefix("self."), "constant"
    return ast.unparse(value), "op"


def _reads(value: ast.expr, names: dict[str, str]) -> tuple[str, ...]:
    """The nodes that an expression reads, in their order, each once."""
    found = [node for node in ast.walk(value) if isinstance(node, ast.Name) and node.id in names]
    found.sort(key=lambda node: (node.lineno, node.col_offset))
    return tuple(dict.fromkeys(names[node.id] for node in found))


def _shape(annotation: ast.expr | None) -> str:
    """`f32[8, 64].stride(1, 8)` as a person writes it: `float32[8, 64]`."""
    match annotation:
        case None | ast.Constant():
            return ""
        case ast.Tuple(elts=parts):
            return f"({', '.join(_shape(part) or '?' for part in parts)})"
        case ast.Call(func=ast.Name(), args=[expression]):
            return ast.unparse(expression)  # sym(2*s0)
        case ast.Call(func=ast.Attribute(value=inner, attr="on"), args=[ast.Constant(value=str(device))]):
            return f"{_shape(inner)} {device}"
        case ast.Call(func=ast.Attribute(value=inner)):
            return _shape(inner)
        case ast.Subscript(value=ast.Name(id=dtype), slice=ast.Tuple(elts=[])):
            return f"{_dtype(dtype)}[]"
        case ast.Subscript(value=ast.Name(id=dtype), slice=ast.Tuple(elts=sizes)):
            return f"{_dtype(dtype)}[{', '.join(map(ast.unparse, sizes))}]"
        case ast.Subscript(value=ast.Name(id=dtype), slice=size):
            return f"{_dtype(dtype)}[{ast.unparse(size)}]"
    return ast.unparse(annotation)


def _dtype(short: str) -> str:
    if short == "b8":
        return "bool"
    found = _DTYPE.fullmatch(short)
    return short if found is None else _DTYPES[found[1]] + found[2]


# Those whose name in `operator` is not that of the syntax tree.
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.MatMult: "matmul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.NotEq: "ne",
    ast.LtE: "le",
    ast.GtE: "ge",
    ast.USub: "neg",
    ast.UAdd: "pos",
    ast.Not: "not_",
}
