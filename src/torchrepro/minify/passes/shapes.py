"""Sizes: all dimensions to 1 at once, else each to the smallest with which it still fails.

Tensors are sliced, so that the values stay, at the element that fails. A size may matter in itself: a kernel
that goes wrong just above the width of a vector needs 17 elements, whichever they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch

from torchrepro.edit.coupling import dimension_table
from torchrepro.edit.dimensions import Dimension, DimensionTable, smallest_that_runs
from torchrepro.edit.held_tensors import held_tensors
from torchrepro.minify.layouts import drop_ranks, plainer_layouts, squeezed
from torchrepro.minify.problem import Problem
from torchrepro.minify.size_search import (
    current_table,
    members_of,
    one_less,
    shrink,
    still_there,
    stretch_single_elements,
)
from torchrepro.nouns.repro import Repro

_searched: WeakKeyDictionary[Problem, list[torch.Size]] = WeakKeyDictionary()
"""The sizes with which a problem's search for sizes has ended before."""


def shrink_dimensions(problem: Problem) -> None:
    """The smallest sizes that still fail: with one step less in any dimension it does not."""
    table = dimension_table(problem.best, problem.best_verdict)
    if _searched.get(problem) == _sizes(problem.best):
        # Only values or ops have changed since: it is enough to see that no step less will do.
        _steps(problem, table, [members_of(each) for each in table.free])
    elif not problem.accept(_all_at_once(problem, table)):
        _each(problem, table)
    stretch_single_elements(problem, current_table(problem, table))
    plainer_layouts(problem)
    drop_ranks(problem)
    _searched[problem] = _sizes(problem.best)


def _sizes(repro: Repro) -> list[torch.Size]:
    return [each.tensor.shape for each in held_tensors(repro)]


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
        finished.append(members_of(dimension))
        shrink(problem, table, dimension)
        table = current_table(problem, table)
        all_at_one = not any(still_there(table, each) for each in finished)
        # At once, so that what is asked from here on is asked in the shape that stays.
        if all_at_one and drop_ranks(problem):
            finished, table = [], current_table(problem, table)
    _steps(problem, table, finished)


def _steps(problem: Problem, table: DimensionTable, dimensions: Sequence[frozenset[object]]) -> None:
    """One step less of each dimension, again and again, until none will do."""
    before = None
    while problem.best is not before:
        before = problem.best
        for chosen in dimensions:
            table = current_table(problem, table)
            for dimension in still_there(table, chosen):
                problem.accept_first(one_less(table, dimension))


def _next(table: DimensionTable, finished: Sequence[frozenset[object]]) -> Dimension | None:
    """The smallest dimension that has not had its turn."""
    left = [
        each
        for each in table.free
        if each.size > 1 and not any(members_of(each) & members for members in finished)
    ]
    return min(left, key=lambda each: each.size, default=None)
