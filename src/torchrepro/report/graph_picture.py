"""Turn the text of a graph into its picture, and group its nodes by the user's modules.

The text is parsed as Python, never run, and needs no torch.

Loading a graph (`graph_text/parser.py`) needs the operators themselves, a picture only their names. So a
bundle with operators that are not installed here is drawn like any other, in milliseconds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

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


# Groups: a box for each module, with long levels divided.

SMALL = 60
"""A graph of up to this many nodes is fully open at first. Layout takes about 0.1 s for twice as many."""
ROOM = 24
"""In a larger graph, outer groups are open at first as long as at most this many boxes are visible."""
LONGEST = 30
"""A level with more nodes and groups than this is divided into runs of neighbours."""
DEEPEST = 40
"""Maximum depth of modules; the rest of a longer (hostile) path becomes one name."""


class Group(NamedTuple):
    """A module, or a run of neighbours in a module with too many parts."""

    label: str
    parent: int
    """Index of its parent in the list; the first is the whole graph, its own parent."""
    nodes: int
    """How many nodes are inside, at any depth."""
    open: bool
    """Whether it is shown open at first."""


class Grouping(NamedTuple):
    """All groups, parents before children, and for each node the number of the group that it is in."""

    groups: list[Group]
    group_of: list[int]


@dataclass(slots=True)
class _Branch:
    """A group under construction; its parts are branches and numbers of nodes, in the order of the graph."""

    label: str
    parts: list[_Branch | int] = field(default_factory=list)
    open: bool = False

    @property
    def inner(self) -> list[_Branch]:
        return [part for part in self.parts if isinstance(part, _Branch)]

    def nodes(self) -> Iterator[int]:
        for part in self.parts:
            yield from (part,) if isinstance(part, int) else part.nodes()


def grouped(nodes: Sequence[Node]) -> Grouping:
    """Group nodes by module path, with the groups around a culprit open."""
    whole = _branch("", range(len(nodes)), _paths(nodes), 0, nodes)
    _open(whole, nodes)
    groups: list[Group] = []
    group_of = [0] * len(nodes)
    waiting = [(whole, 0)]
    for branch, parent in waiting:
        number = len(groups)
        groups.append(Group(branch.label, parent, sum(1 for _ in branch.nodes()), branch.open))
        for part in branch.parts:
            if isinstance(part, int):
                group_of[part] = number
            else:
                waiting.append((part, number))
    return Grouping(groups, group_of)


def _paths(nodes: Sequence[Node]) -> list[tuple[str, ...]]:
    """Return the module path of each node.

    A parameter is an input of the graph without a path of its own: in a large graph it is shown where it is
    read, or hundreds of them would hide everything else.
    """
    paths = [tuple(part for part in node.module.split(".", DEEPEST) if part) for node in nodes]
    if len(nodes) <= SMALL:
        return paths
    numbers = {node.name: number for number, node in enumerate(nodes)}
    readers: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        for name in node.inputs:
            if name in numbers:
                readers.setdefault(numbers[name], []).append(number)
    for number, node in enumerate(nodes):
        if node.kind in ("input", "constant") and not node.module and number in readers:
            levels = zip(*(paths[reader] for reader in readers[number]), strict=False)
            paths[number] = tuple(level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels))
    return paths


def _branch(
    label: str, numbers: Sequence[int], paths: Sequence[tuple[str, ...]], depth: int, nodes: Sequence[Node]
) -> _Branch:
    """Group nodes whose paths begin alike by the next word of their path.

    A group with one subgroup is merged with it, and a node that is alone in its group stands outside. In a
    large graph, long levels are divided into runs of neighbours until each is short enough.
    """
    inside: dict[str | int, list[int]] = {}
    for number in numbers:
        word = paths[number][depth] if len(paths[number]) > depth else number
        inside.setdefault(word, []).append(number)
    branch = _Branch(label)
    for word, some in inside.items():
        part: _Branch | int = some[0]
        if isinstance(word, str):
            # The last word of the path, with the list's name before a number.
            words = paths[some[0]][max(0, depth - int(word.isdigit())) : depth + 1]
            part = inner = _branch(".".join(words), some, paths, depth + 1, nodes)
            if len(inner.parts) == 1:
                part = inner.parts[0]
                if isinstance(part, _Branch):
                    # `layers` and `layers.3` are `layers.3`.
                    last = inner.label.rpartition(".")[2]
                    rest = part.label.removeprefix(f"{last}.")
                    part.label = f"{inner.label}.{rest}"
        branch.parts.append(part)
    while len(branch.parts) > LONGEST and len(nodes) > SMALL:
        count = -(-len(branch.parts) // LONGEST)
        size = -(-len(branch.parts) // count)
        runs = [branch.parts[at : at + size] for at in range(0, len(branch.parts), size)]
        branch.parts = [_run(run, nodes) if len(run) > 1 else run[0] for run in runs]
    return branch


def _run(parts: list[_Branch | int], nodes: Sequence[Node]) -> _Branch:
    first, last = (
        (nodes[part].name if isinstance(part, int) else part.label).split(" … ")
        for part in (parts[0], parts[-1])
    )
    return _Branch(f"{first[0]} … {last[-1]}", list(parts))


def _open(whole: _Branch, nodes: Sequence[Node]) -> None:
    """Open all of a small graph; of a large one the groups around the culprit, and outer groups that fit."""
    whole.open = True
    order = [whole]
    for branch in order:
        order.extend(branch.inner)
        for part in branch.inner:
            part.open = len(nodes) <= SMALL or any(nodes[number].guilty for number in part.nodes())
    seen = sum(
        isinstance(part, int) or not part.open for branch in order if branch.open for part in branch.parts
    )
    for branch in order:
        for inside in branch.inner if branch.open else ():
            if not inside.open and seen + len(inside.parts) - 1 <= ROOM:
                inside.open = True
                seen += len(inside.parts) - 1
