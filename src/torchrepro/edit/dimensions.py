"""The table of dimensions: sizes that can only change together, over all inputs and the graph's arguments.

To change one is to slice every tensor that has it, at the element that fails, and to write the new size
wherever the graph names the old one. Whether the result runs is asked of fake tensors, which takes
milliseconds; so the table may propose what does not fit.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

import torch

from torchrepro.edit.arguments import Literal, with_literals
from torchrepro.edit.held_tensors import Held, indices_below, window, with_tensors
from torchrepro.edit.symbolic_sizes import Axis, Formula
from torchrepro.edit.validity import why_invalid
from torchrepro.graph_text.annotations import TensorNote, note_of_node
from torchrepro.nouns.repro import Repro

_COMBINATIONS = 48
"""How many ways to fit the numbers in the arguments are tried on fakes, for one wish."""
_MANY_OPS = 60
"""Above, fakes take a tenth of a second and more, and only three ways are tried."""


@dataclass(frozen=True, eq=False)
class Dimension:
    """Sizes that are one and the same. `at` is where along it the failing element lies."""

    name: str
    size: int
    axes: tuple[Axis, ...]
    literals: tuple[Literal, ...]
    formula: Formula | None = None
    at: int = 0
    at_is_known: bool = False
    """The verdict says so; else it is a guess."""


@dataclass(frozen=True, eq=False)
class DimensionTable:
    """The dimensions of a repro. `free` ones can be chosen; the others follow, or are made to fit."""

    repro: Repro
    held: tuple[Held, ...]
    dimensions: tuple[Dimension, ...]
    free: tuple[Dimension, ...]
    loose: tuple[Dimension, ...]
    """Numbers in arguments that are sizes, though of no input: those of a view."""
    is_guess: bool = False
    """Sizes are taken to be one because they are equal."""

    def resized(self, wish: Mapping[str, int], starts: Mapping[str, int] | None = None) -> Repro | None:
        """The repro with other sizes, by the names of dimensions; None where no such repro would run."""
        for sizes in islice(self._ways(wish), 3 if self.repro.ops > _MANY_OPS else _COMBINATIONS):
            candidate = self._with_sizes(sizes, starts or {})
            if candidate is not None and not why_invalid(candidate) and self._earlier_calls_run(candidate):
                return candidate
        return None

    def _ways(self, wish: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Sizes for all dimensions: as wished, the loose ones fitted in every likely way."""
        base = {each.name: each.size for each in self.dimensions} | dict(wish)
        changed = [(each.size, size) for each in self.free if (size := wish.get(each.name)) is not None]
        changed = [(before, after) for before, after in changed if before != after]
        bold = all(wish.get(each.name, each.size) == 1 for each in self.free)
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
        """Set what follows from the other sizes; False where that is no size."""
        for each in self.dimensions:
            if each.formula is not None:
                found = each.formula(sizes)
                if found is None:
                    return False
                sizes[each.name] = found
        return True

    def _with_sizes(self, sizes: Mapping[str, int], starts: Mapping[str, int]) -> Repro | None:
        changed = [each for each in self.dimensions if sizes[each.name] != each.size or each.name in starts]
        shapes = {number: list(each.tensor.shape) for number, each in enumerate(self.held)}
        origins = {number: [0] * each.tensor.dim() for number, each in enumerate(self.held)}
        literals: dict[Literal, Any] = {}
        for each in changed:
            size = sizes[each.name]
            start = starts.get(each.name, max(0, min(each.at, each.size - size)))
            for axis in each.axes:
                shapes[axis.held][axis.axis], origins[axis.held][axis.axis] = size, start
            literals |= dict.fromkeys(each.literals, size)
        touched = {axis.held for each in changed for axis in each.axes}
        others = {self.held[n]: window(self.held[n].tensor, origins[n], shapes[n]) for n in sorted(touched)}
        limits = [(each.size, sizes[each.name]) for each in changed if each.axes]
        others |= indices_below(
            self.repro, [(each, others.get(each, each.tensor)) for each in self.held], limits
        )
        numbers = {literal.node: value for literal, value in literals.items() if not literal.path}
        candidate = _with_numbers(with_tensors(self.repro, others), numbers)
        return _with_hints(with_literals(candidate, {k: v for k, v in literals.items() if k.path}))

    def _earlier_calls_run(self, candidate: Repro) -> bool:
        calls = (replace(candidate, inputs=inputs, earlier=()) for inputs in candidate.earlier)
        return not any(map(why_invalid, calls))


def _fitting(size: int, changed: Sequence[tuple[int, int]], bold: bool) -> list[int]:
    """What a loose number could become when sizes change from one to another, the likeliest first."""
    scaled = [size * after // before for before, after in changed if size * after % before == 0]
    # An index counts up to the size it goes along, and no op says that the two are one.
    same = [after for before, after in changed if before == size]
    found = dict.fromkeys([*same, size, *scaled, *(after for _, after in changed)])
    found.pop(1, None)
    return [1, *found] if bold else [*found, 1]


def symbols_of_axes(repro: Repro, index: int | None) -> list[tuple[int, str]]:
    placeholders = [node for node in repro.graph.graph.nodes if node.op == "placeholder"]
    if index is None or index >= len(placeholders):
        return []
    note = note_of_node(placeholders[index])
    if not isinstance(note, TensorNote):
        return []
    return [(a, size) for a, size in enumerate(note.shape) if isinstance(size, str) and size.isidentifier()]


def _with_numbers(repro: Repro, numbers: Mapping[str, int]) -> Repro:
    """The repro with other numbers as inputs, by the names of the placeholders."""
    if not numbers:
        return repro
    names = [node.name for node in repro.graph.graph.nodes if node.op == "placeholder"]
    inputs = tuple(numbers.get(name, value) for name, value in zip(names, repro.inputs, strict=False))
    return replace(repro, inputs=inputs)


def _with_hints(repro: Repro) -> Repro:
    """Symbols with the values that the inputs have."""
    hints: dict[str, int] = {}
    for index, value in enumerate(repro.inputs):
        if isinstance(value, torch.Tensor):
            hints |= {symbol: value.shape[axis] for axis, symbol in symbols_of_axes(repro, index)}
    symbols = tuple(replace(s, hint=hints[s.name]) if s.name in hints else s for s in repro.symbols)
    return replace(repro, symbols=symbols) if repro.symbols else repro


_SECONDS = 3.0
"""For the search on fakes; half a compile."""


def smallest_that_runs(table: DimensionTable, floor: int) -> Repro | None:
    """The repro with every free dimension at `floor`, or as near to it as it runs; None: no smaller one does.

    Sizes that are multiples of one another (heads and features, chunks of a projection) shrink by a common
    factor, where none of them can shrink alone.
    """
    wish = {each.name: min(each.size, floor) for each in table.free}
    if all(wish[each.name] == each.size for each in table.free):
        return None
    found = table.resized(wish)
    if found is not None:
        return found
    return _by_steps(table, floor)


def _by_steps(table: DimensionTable, floor: int) -> Repro | None:
    deadline = time.monotonic() + _SECONDS
    sizes = {each.name: each.size for each in table.free}
    best: Repro | None = None

    def runs(wish: dict[str, int]) -> bool:
        nonlocal best, sizes
        if wish == sizes or time.monotonic() > deadline:
            return False
        found = table.resized(wish)
        if found is not None:
            best, sizes = found, wish
        return found is not None

    chosen = dict(sizes)
    sizes |= {each.name: each.size for each in table.loose}
    for factor in sorted(set(sizes.values()), reverse=True):
        if factor > 1 and factor in sizes.values():
            runs(
                {
                    name: max(floor, size // factor) if size % factor == 0 else size
                    for name, size in sizes.items()
                }
            )
    before: dict[str, int] = {}
    while sizes != before and time.monotonic() < deadline:
        before = dict(sizes)
        for name in sorted(chosen, key=sizes.__getitem__, reverse=True):
            _one_down(sizes, name, floor, runs)
    return best


def _one_down(sizes: dict[str, int], name: str, floor: int, runs: Callable[[dict[str, int]], bool]) -> None:
    """Try the smallest size of one dimension with which it runs, the others being as they are."""
    if sizes[name] > floor and not runs({**sizes, name: floor}):
        bisect_left(range(sizes[name]), True, lo=floor + 1, key=lambda size: runs({**sizes, name: size}))
