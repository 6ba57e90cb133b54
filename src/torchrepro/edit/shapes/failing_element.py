"""Where along each dimension the failing element lies: the slice that is kept has to hold it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch

from torchrepro.edit.literals import Literal
from torchrepro.edit.shapes.symbolic_sizes import Axis, Traced, Unknown
from torchrepro.edit.values.held_tensors import Held
from torchrepro.nouns.comparison import LeafComparison
from torchrepro.nouns.verdict import Verdict

_MANY = 1 << 24
_INPUT = re.compile(r"inputs\W*\[(\d+)\]")
_RESULT = re.compile(r"out(?:\[(\d+)\])?")


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
        if tensor.dtype.itemsize < 2 or not 0 < tensor.numel() <= _MANY:
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
    given = _INPUT.search(leaf.path)
    if given is not None:
        index = int(given[1])
        number = next((number for number, each in enumerate(held) if each.index == index), None)
        if number is None:
            return []
        return [names.get(Axis(number, axis)) for axis in range(held[number].tensor.dim())]
    result = _RESULT.match(leaf.path)
    return list(traced.results.get(int(result[1] or 0), ())) if result is not None else []
