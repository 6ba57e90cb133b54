"""Sizes: all dimensions to 1 at once, else each to the smallest with which it still fails.

Tensors are sliced, so that the values stay, at the element that fails. A size may matter in itself: a kernel
that goes wrong just above the width of a vector needs 17 elements, whichever they are. So 1 is asked first,
then the sizes above powers of two, then what lies between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchrepro.minify.coupling import dimension_table, table_of_equal_sizes
from torchrepro.minify.dimensions import Dimension, DimensionTable
from torchrepro.minify.layouts import drop_ranks, plainer_layouts, squeezed
from torchrepro.minify.problem import Problem
from torchrepro.minify.smallest_sizes import smallest_that_runs
from torchrepro.repro import Repro
from torchrepro.verdict import Kind


def shrink_dimensions(problem: Problem) -> None:
    """The smallest sizes that still fail: with one step less in any dimension it does not."""
    table = dimension_table(problem.best, problem.best_verdict)
    if not problem.accept(_all_at_once(problem, table)):
        _each(problem, table)
    plainer_layouts(problem)
    drop_ranks(problem)


def _all_at_once(problem: Problem, table: DimensionTable) -> Repro | None:
    """Everything at 1; None where that has been asked about already, in its shortest form."""
    candidate = smallest_that_runs(table, 1)
    flat = None if candidate is None else squeezed(candidate)
    return None if flat is not None and problem.verdict_on(flat) is not None else candidate


def _each(problem: Problem, table: DimensionTable) -> None:
    """One dimension after the other, small ones first: what needs its size is often the largest.

    Then, in what the others have become, one step less of each.
    """
    finished: list[frozenset[object]] = []
    while (dimension := _next(table, finished)) is not None:
        finished.append(_members(dimension))
        _shrink(problem, table, dimension)
        # At once, so that what is asked from here on is asked in the shape that stays.
        if not any(_found(_current(problem, table), each) for each in finished) and drop_ranks(problem):
            finished = []
        table = _current(problem, table)
    before = None
    while problem.best is not before:
        before = problem.best
        for chosen in finished:
            table = _current(problem, table)
            for dimension in _found(table, chosen):
                problem.accept_first(_one_less(table, dimension))


def _next(table: DimensionTable, finished: Sequence[frozenset[object]]) -> Dimension | None:
    """The smallest dimension that has not had its turn."""
    left = [
        each
        for each in table.free
        if each.size > 1 and not any(_members(each) & members for members in finished)
    ]
    return min(left, key=lambda each: each.size, default=None)


def _shrink(problem: Problem, table: DimensionTable, dimension: Dimension) -> None:
    """The smallest size that fails, around the element that does; where that is a guess, from both ends."""
    name, size = dimension.name, dimension.size

    def around(wanted: int) -> Repro | None:
        return table.resized({name: wanted})

    def from_front(wanted: int) -> Repro | None:
        return table.resized({name: wanted}, {name: 0})

    one, less = around(1), from_front(size - 1)
    if problem.accept(one) or (less is not None and problem.verdict_on(less) is not None):
        return  # or it is known that it is as small as it can be
    if not table.is_guess and _is_refused(problem, one):
        table = table_of_equal_sizes(problem.best, problem.best_verdict)
        for coarser in _found(table, _members(dimension)):
            _shrink(problem, table, coarser)
        return
    _search(problem, around if dimension.at_is_known else from_front, size)
    table = _current(problem, table)
    for now in _found(table, _members(dimension)) if not dimension.at_is_known else ():

        def from_end(wanted: int, now: Dimension = now) -> Repro | None:
            return table.resized({now.name: wanted}, {now.name: now.size - wanted})

        if problem.accept(from_end(now.size - 1)) and not problem.accept(from_end(1)):
            _search(problem, from_end, now.size - 1)


def _is_refused(problem: Problem, candidate: Repro | None) -> bool:
    """Whether eager would not run what fakes have run: more belongs together than is known."""
    verdict = None if candidate is None else problem.verdict_on(candidate)
    return verdict is not None and verdict.kind is Kind.INVALID


def _search(problem: Problem, resized: Callable[[int], Repro | None], high: int) -> None:
    """The smallest size that fails, between 1, which does not, and `high`, which does."""
    low = 1
    while high - low > 1:
        asked = _spread(_likely(low, high), max(1, problem.oracle.workers))
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


def _one_less(table: DimensionTable, dimension: Dimension) -> list[Repro | None]:
    """Without the last element along it; without the first, where it is not known which one fails."""
    less = {dimension.name: dimension.size - 1}
    if dimension.at_is_known:
        return [table.resized(less)]
    return [table.resized(less, {dimension.name: start}) for start in (0, 1)]


def _current(problem: Problem, table: DimensionTable) -> DimensionTable:
    """The table of the best as it is now."""
    return table if table.repro is problem.best else dimension_table(problem.best, problem.best_verdict)


def _members(dimension: Dimension) -> frozenset[object]:
    return frozenset((*dimension.axes, *dimension.literals))


def _found(table: DimensionTable, members: frozenset[object]) -> list[Dimension]:
    """The dimension that had these members, if it is still more than 1."""
    return [each for each in table.free if each.size > 1 and _members(each) & members][:1]
