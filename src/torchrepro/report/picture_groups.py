"""Group the nodes of a picture by the user's modules, and divide long levels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from torchrepro.report.contents import Node

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
