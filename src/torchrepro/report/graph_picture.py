"""From the text of a graph to its picture. The text is parsed as Python, never run, and needs no torch.

A reader of graphs (`graph_text/parser.py`) wants the operators themselves, a picture only their names. So a
stranger's bundle, with operators that are not installed here, is drawn like any other, in milliseconds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from torchrepro.graph_text.source_lines import origin_in
from torchrepro.graph_text.syntax import GraphSyntax, Line, Operation, operation, read_syntax
from torchrepro.report.contents import Node, Picture

_DTYPE = re.compile(r"(bf|f|i|u|c)(\d+)")
_DTYPES = {"bf": "bfloat", "f": "float", "i": "int", "u": "uint", "c": "complex"}


def picture_of(title: str, graph_text: str, *, guilty: str = "") -> Picture:
    """Return the picture of a graph; nested graphs stand in it under their names, like modules."""
    return Picture(title, tuple(_nodes(read_syntax(graph_text), guilty)))


def _nodes(graph: GraphSyntax, guilty: str, prefix: str = "") -> Iterator[Node]:
    for item in graph.state:
        if isinstance(item, GraphSyntax) and item.same_as is None:
            yield from _nodes(item, "", f"{prefix}{item.path}.")
    names: dict[str, str] = {}
    for line in graph.lines:
        yield _node(line, names, prefix, guilty)
        names[line.variable] = prefix + line.name


def _node(line: Line, names: dict[str, str], prefix: str, guilty: str) -> Node:
    reads = () if line.value is None else _reads(line.value, names)
    op, kind = ("output", "output") if not line.variable else _label(operation(line, names))
    source, module = origin_in(line.comment) if kind == "op" else ("", "")
    return Node(
        name=prefix + line.name,
        op=op,
        kind=kind,
        inputs=reads,
        module=".".join(part for part in (prefix.rstrip("."), module) if part),
        source=source,
        shape=_shape(line.note),
        guilty=bool(guilty) and line.name == guilty,
    )


def _label(found: Operation) -> tuple[str, str]:
    """What a node computes, in the words of `GuiltyOp.op`, and its kind."""
    match found:
        case Operation(op="placeholder"):
            return "input", "input"
        case Operation(op="get_attr", target=path):
            return path, "constant"
        case Operation(op="call_method", target=method):
            return f".{method}", "op"
        case Operation(target="getattr", args=[_, ast.Constant(value=str(attribute))]):
            return f"getattr {attribute}", "op"
    return found.target.removeprefix("torch.ops.").removeprefix("builtins."), "op"


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
