"""The table of dimensions: sizes that can only change together, over all inputs and the graph's arguments.

What torch's shape reasoning finds is exact as far as the fake kernels check their operands, and some do not.
Where that table leads to candidates that eager rejects, a coarser one is used: equal sizes are taken to be
the same dimension, and numbers in arguments count where an op is known to take sizes there.

To change a dimension is to slice every tensor that has it, at the element that fails, and to write the new
size wherever the graph names the old one. A run on fake tensors, which takes milliseconds, checks whether the
result runs; so the table may propose sizes that do not fit.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product

import torch

from torchrepro.edit.arguments import Literal, literals_of, with_literals
from torchrepro.edit.held_tensors import Held, held_tensors, indices_below, window, with_tensors
from torchrepro.edit.symbolic_sizes import Axis, Dimension, Results, numbers_of, trace_sizes
from torchrepro.edit.validity import why_invalid
from torchrepro.graph_text.annotations import SymbolNote, TensorNote, note_of_node
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict

_MANY_ELEMENTS = 1 << 24
_COMBINATIONS = 48
"""How many ways to fit the numbers in the arguments are tried on fakes, for each requested resize."""
_MANY_OPS = 60
"""Above so many ops, a run on fakes takes 0.1 s and more, and only three ways are tried."""
_SECONDS = 3.0
"""Timeout of a search on fakes: about half the time of a compilation."""
_TAKES_SIZES = (
    *("view", "reshape", "expand", "broadcast_to", "unflatten", "split", "full", "zeros", "ones", "empty"),
    *("rand", "randn", "randint", "arange", "linspace", "layer_norm", "rms_norm", "narrow", "slice"),
    *("as_strided", "resize", "getitem", "setitem", "embedding_dense_backward", "select_backward", "repeat"),
)
"""Parts of the names of ops whose integers are usually sizes or ends of ranges."""


@dataclass(frozen=True, eq=False)
class DimensionTable:
    """The dimensions of a repro. `free` ones can be chosen; the others follow from them, or are fitted."""

    repro: Repro
    held: tuple[Held, ...]
    dimensions: tuple[Dimension, ...]
    free: tuple[Dimension, ...]
    loose: tuple[Dimension, ...]
    """Numbers in arguments that are sizes, but not of an input: those of a view."""
    is_guess: bool = False
    """Equal sizes are taken to be the same dimension."""

    def resized(self, wish: Mapping[str, int], starts: Mapping[str, int] | None = None) -> Repro | None:
        """Return the repro with other sizes, by the names of dimensions; None if no such repro would run."""
        for sizes in islice(self._ways(wish), 3 if self.repro.ops > _MANY_OPS else _COMBINATIONS):
            candidate = self._with_sizes(sizes, starts or {})
            calls = [candidate, *(replace(candidate, inputs=i, earlier=()) for i in candidate.earlier)]
            if not any(map(why_invalid, calls)):
                return candidate
        return None

    def _ways(self, wish: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Yield sizes for all dimensions: as requested, with the loose ones fitted in every likely way."""
        base = {each.name: each.size for each in self.dimensions} | dict(wish)
        changed = [(each.size, after) for each in self.free if (after := base[each.name]) != each.size]
        bold = all(base[each.name] == 1 for each in self.free)
        options = [
            [wish[each.name]] if each.name in wish else _fitting(each.size, changed, bold)
            for each in self.loose
        ]
        alike = [[row[min(place, len(row) - 1)] for row in options] for place in (0, 1, -1)]
        seen = set()
        for chosen in (*alike, *product(*options)):
            sizes = base | dict(zip((each.name for each in self.loose), chosen, strict=True))
            if self._follow(sizes) and (key := tuple(sizes.values())) not in seen:
                seen.add(key)
                yield sizes

    def _follow(self, sizes: dict[str, int]) -> bool:
        """Set the sizes that follow from the others; return False where a result is not a valid size."""
        for each in self.dimensions:
            if each.formula is not None:
                found = each.formula(sizes)
                if found is None:
                    return False
                sizes[each.name] = found
        return True

    def _with_sizes(self, sizes: Mapping[str, int], starts: Mapping[str, int]) -> Repro:
        changed = [each for each in self.dimensions if sizes[each.name] != each.size or each.name in starts]
        ranges: dict[Axis, tuple[int, int]] = {}
        literals: dict[Literal, int] = {}
        for each in changed:
            size = sizes[each.name]
            start = starts.get(each.name, max(0, min(each.at, each.size - size)))
            ranges |= dict.fromkeys(each.axes, (start, size))
            literals |= dict.fromkeys(each.literals, size)
        others = windows(self.held, ranges)
        limits = [(each.size, sizes[each.name]) for each in changed if each.axes]
        tensors = [(each, others.get(each, each.tensor)) for each in self.held]
        candidate = with_tensors(self.repro, others | indices_below(self.repro, tensors, limits))
        names = [node.name for node in candidate.graph.graph.nodes if node.op == "placeholder"]
        inputs = [
            literals.pop(Literal(name, ()), value)
            for name, value in zip(names, candidate.inputs, strict=False)
        ]
        candidate = with_literals(replace(candidate, inputs=tuple(inputs)), literals)
        hints = numbers_of(candidate)
        symbols = tuple(replace(each, hint=hints.get(each.name, each.hint)) for each in candidate.symbols)
        return replace(candidate, symbols=symbols)


def windows(held: Sequence[Held], ranges: Mapping[Axis, tuple[int, int]]) -> dict[Held, torch.Tensor]:
    """Return the tensors that have these axes, each cut to its window: (start, size) along each axis."""
    found = {}
    for number in sorted({axis.held for axis in ranges}):
        shape = held[number].tensor.shape
        parts = [ranges.get(Axis(number, axis), (0, size)) for axis, size in enumerate(shape)]
        starts, sizes = zip(*parts, strict=True)
        found[held[number]] = window(held[number].tensor, starts, sizes)
    return found


def _fitting(size: int, changed: Sequence[tuple[int, int]], bold: bool) -> list[int]:
    """Return what a loose number could become when sizes change from one to another, the likeliest first."""
    scaled = [size * after // before for before, after in changed if size * after % before == 0]
    # The end of an index range equals the size of its dimension, but no op ties the two together.
    same = [after for before, after in changed if before == size]
    found = dict.fromkeys([*same, size, *scaled, *(after for _, after in changed)])
    found.pop(1, None)
    return [1, *found] if bold else [*found, 1]


# Building a table.


def dimension_table(repro: Repro, verdict: Verdict, *, guess: bool = False) -> DimensionTable:
    """Return the table of a repro that fails with this verdict. `guess`: take equal sizes to be the same."""
    held = tuple(held_tensors(repro))
    traced = None if guess else trace_sizes(repro, held)
    dimensions, results = (_equal_sizes(repro, held), {}) if traced is None else traced
    made = _with_positions(_joined(dimensions, repro, held), verdict, results, held)
    made = _with_earlier_calls(made, held)
    needed = {name for each in made if each.axes for name in each.needs}
    sizes = {literal for literal, _ in _numbers_that_are_sizes(repro)}
    choosable = [each for each in made if each.formula is None]
    free = tuple(each for each in choosable if each.axes or each.name in needed)
    loose = tuple(
        each
        for each in choosable
        if each not in free and (each.in_shapes or not sizes.isdisjoint(each.literals))
    )
    return DimensionTable(repro, held, tuple(made), free, loose, traced is None)


def _equal_sizes(repro: Repro, held: Sequence[Held]) -> list[Dimension]:
    """Return one dimension per size above 1, with all axes and numbers equal to it, and per other number."""
    members: dict[int, list[Axis | Literal]] = {}
    for number, each in enumerate(held):
        for axis, size in enumerate(each.tensor.shape if each.is_of_the_call else ()):
            if size > 1:
                members.setdefault(size, []).append(Axis(number, axis))
    numbers: dict[int, list[Axis | Literal]] = {}
    for literal, value in _numbers_that_are_sizes(repro):
        (members if value in members else numbers).setdefault(value, []).append(literal)
    for node, value in zip(repro.graph.graph.find_nodes(op="placeholder"), repro.inputs, strict=False):
        if type(value) is int and value in members:
            members[value].append(Literal(node.name, ()))
    sizes = [Dimension(f"size {size}", size, tuple(found)) for size, found in members.items()]
    return sizes + [
        Dimension(f"number {value}", value, tuple(found), in_shapes=True) for value, found in numbers.items()
    ]


def _numbers_that_are_sizes(repro: Repro) -> Iterator[tuple[Literal, int]]:
    """Yield integers above 1 in the arguments of ops that take sizes, going by the names of the ops."""
    for node in repro.graph.graph.nodes:
        name = str(getattr(node.target, "__name__", node.target))
        if any(word in name for word in _TAKES_SIZES):
            for literal, value in literals_of(node, int):
                # A plain index selects one element; only the ends of a slice are sizes.
                if value > 1 and ("item" not in name or literal.path[-1] in ("start", "stop")):
                    yield literal, value


def _joined(dimensions: Sequence[Dimension], repro: Repro, held: Sequence[Held]) -> list[Dimension]:
    """Merge dimensions that have the same symbol in the notes of a dynamic graph."""
    names: dict[Axis | Literal, str] = {}
    inputs = {each.index: number for number, each in enumerate(held)}
    for index, node in enumerate(repro.graph.graph.find_nodes(op="placeholder")):
        note = note_of_node(node)
        if isinstance(note, SymbolNote):
            names[Literal(node.name, ())] = note.expression
        elif isinstance(note, TensorNote) and index in inputs:
            for axis, size in enumerate(note.shape):
                if isinstance(size, str) and size.isidentifier():
                    names[Axis(inputs[index], axis)] = size
    found: dict[str, Dimension] = {}
    owner: dict[str, str] = {}
    for each in dimensions:
        symbols = {names[member] for member in each.members if member in names}
        target = next((owner[symbol] for symbol in sorted(symbols) if symbol in owner), each.name)
        owner |= dict.fromkeys(symbols, target)
        known = found.get(target)
        if known is None or known.formula is not None or each.formula is not None:
            found[each.name] = each
        else:
            found[target] = replace(known, members=(*known.members, *each.members))
    return list(found.values())


def _with_positions(
    dimensions: Sequence[Dimension], verdict: Verdict, results: Results, held: Sequence[Held]
) -> list[Dimension]:
    """Return the dimensions with the position of the failing element, by the verdict or else a guess.

    A probe's verdict may be about inputs of other sizes, where positions are beyond those of the repro.
    """
    found: dict[str, int] = {}
    sizes = {each.name: each.size for each in dimensions}
    names = {axis: each.name for each in dimensions for axis in each.axes}
    inputs = {each.index: number for number, each in enumerate(held) if each.index is not None}
    differing = () if verdict.comparison is None else verdict.comparison.differing
    for leaf in sorted(differing, key=lambda leaf: -leaf.severity):
        where, places = leaf.where, leaf.index or ()
        along: Sequence[str | None] = ()
        if where.input in inputs:
            along = [names.get(Axis(inputs[where.input], axis)) for axis in range(len(places))]
        elif where.input is None and where.part == "out":
            along = results.get(where.output or 0, ())
        for name, place in zip(along, places, strict=False):
            if name in sizes and place < sizes[name]:
                found.setdefault(name, place)
    known = {axis: found[each.name] for each in dimensions if each.name in found for axis in each.axes}
    return [
        replace(each, at=found[each.name], at_is_known=True)
        if each.name in found
        else replace(each, at=_likely_position(each.axes, known, held))
        for each in dimensions
    ]


def _likely_position(axes: Sequence[Axis], known: Mapping[Axis, int], held: Sequence[Held]) -> int:
    """Guess a position that the verdict does not tell: that of the largest absolute value, or of a NaN.

    Known positions along other dimensions narrow it down.
    """
    for axis in axes:
        tensor = held[axis.held].tensor.detach()
        if tensor.dtype.itemsize < 2 or not 0 < tensor.numel() <= _MANY_ELEMENTS:
            continue
        for other in range(tensor.dim()):
            place = known.get(Axis(axis.held, other))
            if place is not None and other != axis.axis:
                tensor = tensor.narrow(other, min(place, tensor.shape[other] - 1), 1)
        sizes = tensor.to(torch.float64 if not tensor.is_complex() else torch.complex128).abs()
        sizes = sizes.nan_to_num(nan=float("inf"))
        along = sizes.movedim(axis.axis, 0).reshape(sizes.shape[axis.axis], -1).amax(1)
        return int(along.argmax())
    return 0


def _with_earlier_calls(dimensions: Sequence[Dimension], held: Sequence[Held]) -> list[Dimension]:
    """Return the dimensions with the axes of tensors that only earlier calls take.

    Where their size is that of the call itself, they change with it. Other sizes are separate dimensions, one
    for each call and size.
    """
    owner = {axis: each.name for each in dimensions for axis in each.axes}
    inputs = {each.index: number for number, each in enumerate(held) if each.index is not None}
    made = {each.name: each for each in dimensions}
    for number, each in enumerate(held):
        if each.is_of_the_call:
            continue
        call, index = next(spot for spot in each.spots if isinstance(spot, tuple))
        for axis, size in enumerate(each.tensor.shape):
            name = owner.get(Axis(inputs.get(index, -1), axis), "")
            if name not in made or made[name].size != size:
                name = f"size {size} of call {call}"
                if size > 1:
                    made.setdefault(name, Dimension(name, size))
            if name in made:
                made[name] = replace(made[name], members=(*made[name].members, Axis(number, axis)))
    return list(made.values())


def smallest_that_runs(table: DimensionTable, floor: int) -> Repro | None:
    """Return the repro with every free dimension at `floor`, or as near as runs; None if no smaller one runs.

    Sizes that are multiples of one another (heads and features, chunks of a projection) shrink by a common
    factor, where none of them can shrink alone.
    """
    wish = {each.name: min(each.size, floor) for each in table.free}
    if all(wish[each.name] == each.size for each in table.free):
        return None
    best = table.resized(wish)
    if best is not None:
        return best
    deadline = time.monotonic() + _SECONDS
    sizes = {each.name: each.size for each in (*table.free, *table.loose)}

    def runs(wish: dict[str, int]) -> bool:
        nonlocal best, sizes
        if wish == sizes or time.monotonic() > deadline:
            return False
        found = table.resized(wish)
        if found is not None:
            best, sizes = found, wish
        return found is not None

    def runs_with(name: str, size: int) -> bool:
        return runs({**sizes, name: size})

    for factor in sorted(set(sizes.values()), reverse=True):
        if factor > 1 and factor in sizes.values():
            runs(
                {name: size if size % factor else max(floor, size // factor) for name, size in sizes.items()}
            )
    before: dict[str, int] = {}
    while sizes != before and time.monotonic() < deadline:
        before = dict(sizes)
        for name in sorted((each.name for each in table.free), key=sizes.__getitem__, reverse=True):
            # Find the smallest size of this dimension with which it runs, with the others unchanged.
            if sizes[name] > floor and not runs_with(name, floor):
                bisect_left(range(sizes[name]), True, lo=floor + 1, key=partial(runs_with, name))
    return best
