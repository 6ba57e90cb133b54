"""Tensors that need not have a size of their own: one element is stretched along it, as torch does."""

from __future__ import annotations

from collections.abc import Collection

from torchrepro.minify.editing.literals import with_literals
from torchrepro.minify.knowing.validity import why_invalid
from torchrepro.minify.problem import Problem
from torchrepro.minify.sizing.dimensions import DimensionTable
from torchrepro.minify.sizing.slicing import window
from torchrepro.minify.sizing.symbolic_sizes import Axis
from torchrepro.minify.valuing.held_tensors import with_tensors
from torchrepro.repro import Place, Repro

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
