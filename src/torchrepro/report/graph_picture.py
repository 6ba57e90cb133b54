"""Turn the text of a graph into its picture. The text is parsed as Python, never run, and needs no torch.

Loading a graph (`graph_text/parser.py`) needs the operators themselves, a picture only their names. So a
bundle with operators that are not installed here is drawn like any other, in milliseconds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchrepro.graph_text.source_lines import origin_in
from torchrepro.graph_text.syntax import DTYPES, GraphSyntax, Operation, operation, read_syntax
from torchrepro.report.contents import Node, Picture


def picture_of(title: str, graph_text: str, *, guilty: str = "") -> Picture:
    """Return the picture of a graph; nested graphs appear in it under their names, like modules."""
    return Picture(title, tuple(_nodes(read_syntax(graph_text), guilty)))


def _nodes(graph: GraphSyntax, guilty: str, prefix: str = "") -> Iterator[Node]:
    for item in graph.state:
        if isinstance(item, GraphSyntax) and item.same_as is None:
            yield from _nodes(item, "", f"{prefix}{item.path}.")
    names: dict[str, str] = {}
    for line in graph.lines:
        op, kind = ("output", "output") if not line.variable else _label(operation(line, names))
        source, module = origin_in(line.comment) if kind == "op" else ("", "")
        yield Node(
            name=prefix + line.name,
            op=op,
            kind=kind,
            inputs=() if line.value is None else _reads(line.value, names),
            module=".".join(part for part in (prefix.rstrip("."), module) if part),
            source=source,
            shape=_shape(line.note),
            guilty=bool(guilty) and line.name == guilty,
        )
        names[line.variable] = prefix + line.name


def _label(found: Operation) -> tuple[str, str]:
    """Return what a node computes, as `GuiltyOp.op` names it, and its kind."""
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
    """Return the nodes that an expression reads, in order, each once."""
    found = [node for node in ast.walk(value) if isinstance(node, ast.Name) and node.id in names]
    found.sort(key=lambda node: (node.lineno, node.col_offset))
    return tuple(dict.fromkeys(names[node.id] for node in found))


def _shape(annotation: ast.expr | None) -> str:
    """Write `f32[8, 64].stride(1, 8)` as `float32[8, 64]`."""
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
        case ast.Subscript(value=ast.Name(id=dtype), slice=size):
            sizes = size.elts if isinstance(size, ast.Tuple) else [size]
            return f"{DTYPES.get(dtype, dtype)}[{', '.join(map(ast.unparse, sizes))}]"
    return ast.unparse(annotation)
