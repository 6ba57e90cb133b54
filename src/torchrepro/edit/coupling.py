"""Which sizes of a repro can only change together, and where along each the failing element lies.

What torch's shape reasoning finds is exact as far as the fake kernels check their operands, and some do not.
Where a table from it leads to candidates that eager refuses, there is the coarser one: equal sizes are taken
to be the same one. Numbers in arguments count where an op is known to take sizes there. A wrong guess makes a
candidate that does not run, and costs no query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchrepro.edit.arguments import Literal, literals_of
from torchrepro.edit.dimensions import Dimension, DimensionTable, symbols_of_axes
from torchrepro.edit.held_tensors import Held, held_tensors
from torchrepro.edit.symbolic_sizes import Axis, Traced, Unknown, trace_sizes
from torchrepro.graph_text.annotations import SymbolNote, note_of_node
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import LeafComparison, Verdict

_MANY_ELEMENTS = 1 << 24


def failing_position(
    verdict: Verdict, traced: Traced, unknowns: Sequence[Unknown], held: Sequence[Held]
) -> dict[str, int]:
    """The index of the worst element along each unknown, as far as the results' shapes tell."""
    if verdict.comparison is None:
        return {}
    names = {member: unknown.name for unknown in unknowns for member in unknown.members}
    found: dict[str, int] = {}
    for leaf in sorted(verdict.comparison.differing, key=lambda leaf: -leaf.max_rel):
        for name, place in zip(_along(leaf, traced, names, held), leaf.index or (), strict=False):
            if name:
                found.setdefault(name, place)
    return found


def likely_position(axes: Sequence[Axis], known: Mapping[Axis, int], held: Sequence[Held]) -> int:
    """A guess where nothing is known: along the element that stands out most, the largest or no number.

    What is known of other dimensions narrows it down.
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


def _along(
    leaf: LeafComparison, traced: Traced, names: Mapping[Axis | Literal, str], held: Sequence[Held]
) -> list[str | None]:
    """The unknown along each axis of the leaf that differs."""
    where = leaf.where
    if where.input is not None:
        number = next((number for number, each in enumerate(held) if each.index == where.input), None)
        if number is None:
            return []
        return [names.get(Axis(number, axis)) for axis in range(held[number].tensor.dim())]
    return list(traced.results.get(where.output or 0, ())) if where.part == "out" else []


_TAKES_SIZES = (
    *("view", "reshape", "expand", "broadcast_to", "unflatten", "split", "full", "zeros", "ones", "empty"),
    *("rand", "randn", "randint", "arange", "linspace", "layer_norm", "rms_norm", "narrow", "slice"),
    *("as_strided", "resize", "getitem", "setitem", "embedding_dense_backward", "select_backward", "repeat"),
)
"""In the names of ops whose integers are sizes or ends of ranges, as a rule."""


def numbers_that_are_sizes(repro: Repro) -> Iterator[tuple[Literal, int]]:
    """Integers above 1 in the arguments of ops that take sizes, by their names."""
    for node in repro.graph.graph.nodes:
        name = str(getattr(node.target, "__name__", node.target))
        if not any(word in name for word in _TAKES_SIZES):
            continue
        for literal, value in literals_of(node, int):
            # A plain index picks one of several; only the ends of a slice are sizes.
            if value > 1 and ("item" not in name or literal.path[-1] in ("start", "stop")):
                yield literal, value


def equal_sizes(repro: Repro, held: Sequence[Held]) -> Traced:
    """One unknown for each size above 1, with all axes and numbers that have it; and for other numbers."""
    members: dict[int, list[Axis | Literal]] = {}
    for number, each in enumerate(held):
        for axis, size in enumerate(each.tensor.shape):
            if size > 1:
                members.setdefault(size, []).append(Axis(number, axis))
    numbers: dict[int, list[Axis | Literal]] = {}
    for literal, value in numbers_that_are_sizes(repro):
        (members if value in members else numbers).setdefault(value, []).append(literal)
    placeholders = [node for node in repro.graph.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, repro.inputs, strict=False):
        if type(value) is int and value in members:
            members[value].append(Literal(node.name, ()))
    sizes = [Unknown(f"size {size}", tuple(found)) for size, found in members.items()]
    others = [Unknown(f"number {value}", tuple(found)) for value, found in numbers.items()]
    return Traced((*sizes, *others), in_shapes=frozenset(each.name for each in others))


def dimension_table(repro: Repro, verdict: Verdict) -> DimensionTable:
    """The table of a repro that fails with this verdict."""
    traced = trace_sizes(repro, _of_the_call(held_tensors(repro)))
    return table_of_equal_sizes(repro, verdict) if traced is None else _table(repro, verdict, traced)


def table_of_equal_sizes(repro: Repro, verdict: Verdict) -> DimensionTable:
    """The same, on the guess that equal sizes are one."""
    traced = equal_sizes(repro, _of_the_call(held_tensors(repro)))
    return replace(_table(repro, verdict, traced), is_guess=True)


def _of_the_call(held: Sequence[Held]) -> list[Held]:
    """Without the tensors that only earlier calls were given."""
    return [each for each in held if any(isinstance(spot, str) or spot[0] == 0 for spot in each.spots)]


def _table(repro: Repro, verdict: Verdict, traced: Traced) -> DimensionTable:
    held = tuple(held_tensors(repro))
    own = _of_the_call(held)
    unknowns = _joined(traced.unknowns, repro, own)
    known = failing_position(verdict, traced, unknowns, own)
    numbers = [held.index(each) for each in own]
    made = [_dimension(unknown, repro, held, numbers, known.get(unknown.name)) for unknown in unknowns]
    made = [_with_likely_position(each, made, held) for each in made]
    made = _with_earlier_calls(made, held)
    needed = {name for u in unknowns if any(isinstance(m, Axis) for m in u.members) for name in u.needs}
    free = tuple(each for each in made if each.formula is None and (each.axes or each.name in needed))
    sizes = {literal for literal, _ in numbers_that_are_sizes(repro)}
    loose = tuple(
        each
        for each in made
        if each.formula is None
        and each not in free
        and (each.name in traced.in_shapes or not sizes.isdisjoint(each.literals))
    )
    return DimensionTable(repro, held, tuple(made), free, loose)


def _dimension(
    unknown: Unknown, repro: Repro, held: Sequence[Held], numbers: Sequence[int], at: int | None
) -> Dimension:
    """The dimension of an unknown, whose axes count the tensors of the call alone."""
    axes = tuple(Axis(numbers[m.held], m.axis) for m in unknown.members if isinstance(m, Axis))
    literals = tuple(m for m in unknown.members if isinstance(m, Literal))
    size = held[axes[0].held].tensor.shape[axes[0].axis] if axes else _value(repro, literals[0])
    return Dimension(unknown.name, size, axes, literals, unknown.formula, at or 0, at is not None)


def _joined(unknowns: Sequence[Unknown], repro: Repro, held: Sequence[Held]) -> list[Unknown]:
    """Unknowns that bear the name of one symbol in the notes of a dynamic graph are one."""
    names: dict[Axis | Literal, str] = {}
    for number, each in enumerate(held):
        for axis, symbol in symbols_of_axes(repro, each.index):
            names[Axis(number, axis)] = symbol
    for node in repro.graph.graph.nodes:
        if node.op == "placeholder" and isinstance(note := note_of_node(node), SymbolNote):
            names[Literal(node.name, ())] = note.expression
    found: dict[str, Unknown] = {}
    owner: dict[str, str] = {}
    for unknown in unknowns:
        symbols = {names[member] for member in unknown.members if member in names}
        target = next((owner[symbol] for symbol in sorted(symbols) if symbol in owner), unknown.name)
        owner |= dict.fromkeys(symbols, target)
        known = found.get(target)
        if known is None or known.formula is not None or unknown.formula is not None:
            found[unknown.name] = unknown
        else:
            found[target] = replace(known, members=(*known.members, *unknown.members))
    return list(found.values())


def _value(repro: Repro, literal: Literal) -> int:
    for number, node in enumerate(node for node in repro.graph.graph.nodes):
        if node.name == literal.node:
            value: Any = (
                repro.inputs[number] if not literal.path else {"args": node.args, "kwargs": node.kwargs}
            )
            for step in literal.path:
                value = getattr(value, str(step)) if isinstance(value, slice) else value[step]
            return int(value)
    raise KeyError(literal)


def _with_likely_position(each: Dimension, known: Sequence[Dimension], held: Sequence[Held]) -> Dimension:
    if each.at_is_known or not each.axes:
        return each
    places = {axis: other.at for other in known if other.at_is_known for axis in other.axes}
    return replace(each, at=likely_position(each.axes, places, held))


def _with_earlier_calls(dimensions: Sequence[Dimension], held: Sequence[Held]) -> list[Dimension]:
    """The dimensions with the axes of tensors that only earlier calls were given.

    Where their size is that of the call itself, they change with it. Other sizes are dimensions of their own,
    one for each call and size.
    """
    owner = {axis: number for number, each in enumerate(dimensions) for axis in each.axes}
    inputs = {each.index: number for number, each in enumerate(held) if each.index is not None}
    made = list(dimensions)
    others: dict[str, Dimension] = {}
    for number, each in enumerate(held):
        spots = [spot for spot in each.spots if isinstance(spot, tuple)]
        if not spots or each.index is not None or len(spots) < len(each.spots):
            continue
        call, index = spots[0]
        for axis, size in enumerate(each.tensor.shape):
            same = owner.get(Axis(inputs.get(index, -1), axis))
            if same is not None and made[same].size == size:
                made[same] = replace(made[same], axes=(*made[same].axes, Axis(number, axis)))
            elif size > 1:
                name = f"size {size} of call {call}"
                known = others.get(name, Dimension(name, size, (), ()))
                others[name] = replace(known, axes=(*known.axes, Axis(number, axis)))
    return made + list(others.values())
