"""The smallest size of one dimension that still fails.

1 is asked first, then the sizes above powers of two, where vectors end, then what lies between.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torchrepro.edit.arguments import with_literals
from torchrepro.edit.coupling import dimension_table, table_of_equal_sizes
from torchrepro.edit.dimensions import Dimension, DimensionTable
from torchrepro.edit.held_tensors import window, with_tensors
from torchrepro.edit.symbolic_sizes import Axis
from torchrepro.edit.validity import why_invalid
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Kind


def shrink(problem: Problem, table: DimensionTable, dimension: Dimension) -> None:
    """The smallest size that fails, around the element that does; where that is a guess, from both ends."""
    name, size = dimension.name, dimension.size

    def around(wanted: int) -> Repro | None:
        return table.resized({name: wanted})

    def from_front(wanted: int) -> Repro | None:
        return table.resized({name: wanted}, {name: 0})

    one, less = around(1), from_front(size - 1)
    if problem.accept(one) or (less is not None and problem.verdict_on(less) is not None):
        return  # or it is known that it is as small as it can be
    if not table.is_guess and _is_refused(problem, one) and _with_equals(problem, dimension):
        return
    _search(problem, around if dimension.at_is_known else from_front, size)
    table = current_table(problem, table)
    for now in still_there(table, members_of(dimension)) if not dimension.at_is_known else ():

        def from_end(wanted: int, now: Dimension = now) -> Repro | None:
            return table.resized({now.name: wanted}, {now.name: now.size - wanted})

        if problem.accept(from_end(now.size - 1)) and not problem.accept(from_end(1)):
            _search(problem, from_end, now.size - 1)


def _is_refused(problem: Problem, candidate: Repro | None) -> bool:
    """Whether it would not run, on fakes or in eager: more belongs together than is known."""
    verdict = None if candidate is None else problem.verdict_on(candidate)
    return candidate is None or (verdict is not None and verdict.kind is Kind.INVALID)


def _with_equals(problem: Problem, dimension: Dimension) -> bool:
    """The same for all equal sizes together; whether that got anywhere."""
    before = problem.best
    table = table_of_equal_sizes(problem.best, problem.best_verdict)
    for coarser in still_there(table, members_of(dimension)):
        shrink(problem, table, coarser)
    return problem.best is not before


def _search(problem: Problem, resized: Callable[[int], Repro | None], high: int) -> None:
    """The smallest size that fails, between 1, which does not, and `high`, which does."""
    low = 1
    while high - low > 1:
        asked = _spread(_likely(low, high), problem.workers)
        found = problem.accept_first([resized(size) for size in asked])
        if found is None:
            low = asked[-1]
        else:
            low, high = asked[found - 1] if found else low, asked[found]


def _likely(low: int, high: int) -> list[int]:
    """Sizes between two that are likelier than others to make a difference; else all.

    First those above a power of two; then whether it is that size to the step; then any.
    """
    powers = [1 << bit for bit in range(high.bit_length())]
    above = [power + 1 for power in powers if low < power + 1 < high]
    return above or ([high - 1] if high in powers or high - 1 in powers else list(range(low + 1, high)))


def _spread(sizes: Sequence[int], width: int) -> list[int]:
    """So many of them, evenly apart; of two the first."""
    places = {len(sizes) * (part + 1) // (width + 1) for part in range(width)}
    return [sizes[0]] if len(sizes) == 2 and width == 1 else sorted({sizes[place] for place in places})


def one_less(table: DimensionTable, dimension: Dimension) -> list[Repro | None]:
    """Without the last element along it; without the first, where it is not known which one fails."""
    less = {dimension.name: dimension.size - 1}
    if dimension.at_is_known:
        return [table.resized(less)]
    return [table.resized(less, {dimension.name: start}) for start in (0, 1)]


def current_table(problem: Problem, table: DimensionTable) -> DimensionTable:
    """The table of the best as it is now."""
    return table if table.repro is problem.best else dimension_table(problem.best, problem.best_verdict)


def members_of(dimension: Dimension) -> frozenset[object]:
    return frozenset((*dimension.axes, *dimension.literals))


def still_there(table: DimensionTable, members: frozenset[object]) -> list[Dimension]:
    """The dimension that had these members, if it is still more than 1."""
    return [each for each in table.free if each.size > 1 and members_of(each) & members][:1]


_MANY = 32
"""Axes above which it is not worth the time on fakes."""


def stretch_single_elements(problem: Problem, table: DimensionTable) -> None:
    """Keep a size only in the tensors that need it, where the graph runs with 1 in its place."""
    if table.repro.place is Place.BEFORE_CAPTURE or table.repro.symbols or table.repro.earlier:
        return
    axes = [axis for each in table.free if each.size > 1 and len(each.axes) > 1 for axis in each.axes]
    possible = [axis for axis in axes[:_MANY] if _at_one(table, {axis}) is not None]
    if possible:
        problem.minimise(possible, lambda kept: _at_one(table, set(possible).difference(kept)))


def _at_one(table: DimensionTable, axes: Collection[Axis]) -> Repro | None:
    """The repro with a single element along these axes; None where it would not run."""
    places = {axis: each.at for each in table.dimensions for axis in each.axes if axis in axes}
    others = {}
    for number in {axis.held for axis in axes}:
        held = table.held[number]
        starts = [places.get(Axis(number, axis), 0) for axis in range(held.tensor.dim())]
        sizes = [1 if Axis(number, axis) in places else size for axis, size in enumerate(held.tensor.shape)]
        others[held] = window(held.tensor, starts, sizes)
    candidate = with_literals(with_tensors(table.repro, others), {})
    return None if why_invalid(candidate) else candidate
