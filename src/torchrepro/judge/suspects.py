"""Leaves that differ, and whether runs with noise explain them, element by element, by the rule's limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from torchrepro.judge.rule import Rule
from torchrepro.judge.tensors import granted_to, is_floating
from torchrepro.nouns.verdict import Difference, LeafComparison

_CHUNK = 1 << 22
"""Elements that are looked at at a time."""
_OTHERS = 4
"""From this many runs on, a run left out shows how far a healthy one may be from the others."""


@dataclass(frozen=True, slots=True, eq=False)
class LeafTensors:
    """The tensors of a leaf on the two sides that are compared, and the truth."""

    ref: torch.Tensor
    res: torch.Tensor
    truth: torch.Tensor | None


def suspect_of(leaf: LeafComparison, tensors: LeafTensors | None, rule: Rule) -> Suspect:
    if tensors is None or leaf.difference in (Difference.SHAPE, Difference.STRUCTURE):
        return Suspect(leaf)
    if not is_floating(tensors.ref.dtype):
        return _DiscreteSuspect(leaf, tensors)
    return _FloatingSuspect(leaf, tensors, rule)


class Suspect:
    """A leaf without tensors to compare by element (a number, a shape): one run has to give the same."""

    def __init__(self, leaf: LeafComparison) -> None:
        self.leaf = leaf
        self._same = False
        self._moved = False

    def add(self, value: torch.Tensor | None, same: bool, *, strong: bool) -> None:
        """Add a run: its tensor in place of this leaf, and whether the compiled side is as close to it."""
        self._same = self._same or (same and not strong)
        self._moved = self._moved or same

    def is_ruled_out(self) -> bool:
        """Return whether strong noise comes nowhere near the compiled result."""
        return not self._moved

    def is_explained(self, runs: int) -> bool:
        return self._same


class _DiscreteSuspect(Suspect):
    """Integers or booleans: each must be one that a run gave, or as near to one as runs are to each other."""

    def __init__(self, leaf: LeafComparison, tensors: LeafTensors) -> None:
        super().__init__(leaf)
        self._compiled = tensors.res
        self._values = [tensors.ref]
        self._strong = torch.zeros(tensors.ref.shape, dtype=torch.bool, device=tensors.ref.device)
        self._odd = False

    def add(self, value: torch.Tensor | None, same: bool, *, strong: bool) -> None:
        super().add(value, same, strong=strong)
        if value is None or value.shape != self._compiled.shape or value.dtype is not self._compiled.dtype:
            self._odd = True
        elif strong:
            self._strong |= value != self._values[0]
        else:
            self._values.append(value)

    def is_ruled_out(self) -> bool:
        differs = self._compiled != self._values[0]
        chaotic = 2 * int(self._strong.sum()) > self._strong.numel()
        return not self._odd and not chaotic and bool((differs & ~self._strong).any())

    def is_explained(self, runs: int) -> bool:
        if self._same:
            return True
        count, distance = _to_nearest(self._compiled, self._values)
        if not count:
            return True
        if runs < _OTHERS:
            return False
        others = [
            _to_nearest(value, self._values[:number] + self._values[number + 1 :])
            for number, value in enumerate(self._values[1:], 1)
        ]
        return count <= 2 * max(each[0] for each in others) and distance <= 2 * max(
            each[1] for each in others
        )


def _to_nearest(value: torch.Tensor, others: list[torch.Tensor]) -> tuple[int, float]:
    """Return how many elements are in none of the others, and the largest distance to the nearest."""
    wide = value.to(torch.float64)
    distance = torch.stack([(wide - other.to(torch.float64)).abs() for other in others]).amin(0)
    if not distance.numel():
        return 0, 0.0
    return int((distance > 0).sum()), float(distance.max())


class _FloatingSuspect(Suspect):
    """Floating numbers: an element may be as far off as the rule grants, plus a factor of what noise does."""

    def __init__(self, leaf: LeafComparison, tensors: LeafTensors, rule: Rule) -> None:
        super().__init__(leaf)
        self._granted, self._target = granted_to(tensors.ref, tensors.res, tensors.truth, rule)
        self._eager, self._compiled = tensors.ref, tensors.res
        half = torch.finfo(tensors.ref.dtype).eps > 1e-5
        # Eager rounds half types after every op, and the compiled side at most as often.
        self._factor = 1.5 if half else 3.0
        self._top, self._second, self._strong = (_zeros(tensors.ref) for _ in range(3))
        self._kinds = [_kind(tensors.ref)]
        self._strong_kinds = [_kind(tensors.ref)]
        self._rms: list[float] = []
        self._odd = False

    def add(self, value: torch.Tensor | None, same: bool, *, strong: bool) -> None:
        super().add(value, same, strong=strong)
        if value is None or value.shape != self._compiled.shape:
            self._odd = True
            return
        (self._strong_kinds if strong else self._kinds).append(_kind(value))
        total = 0.0
        for part in _parts(value.numel() * (2 if value.is_complex() else 1)):
            moved = _distance(value, self._target, part)
            if strong:
                self._strong[part] = torch.maximum(self._strong[part], moved)
                continue
            total += float(moved.square().sum())
            top, second = self._top[part], self._second[part]
            self._second[part] = torch.maximum(second, torch.minimum(top, moved))
            self._top[part] = torch.maximum(top, moved)
        if not strong:
            self._rms.append(math.sqrt(total / max(1, self._top.numel())))

    def is_ruled_out(self) -> bool:
        if self._odd:
            return False
        if _unseen(_kind(self._compiled), self._strong_kinds):
            return True
        outside, squares, noise = False, 0.0, 0.0
        for part in self._parts():
            error, limit, strong = self._error(part), self._limit(part), self._strong[part]
            # Where noise moves most elements, some stay near by chance.
            reach = strong.clamp(min=float(strong.median()))
            outside = outside or bool((error > limit + self._factor * reach).any())
            squares, noise = squares + float(error.square().sum()), noise + float(strong.square().sum())
        count = max(1, self._top.numel())
        rms = math.sqrt(squares / count) > self._granted.rms + self._factor * math.sqrt(noise / count)
        return outside or rms

    def is_explained(self, runs: int) -> bool:
        if not self._rms or _unseen(_kind(self._compiled), self._kinds):
            return False
        beyond = left_out = 0.0
        calm = error2 = top2 = all2 = 0.0
        for part in self._parts():
            error, limit = self._error(part), self._limit(part)
            top, second = self._top[part], self._second[part]
            beyond = max(beyond, float((error - limit - self._factor * top).max()))
            left_out = max(left_out, float((top - limit - self._factor * second).max()))
            still = top <= limit
            calm += float(still.sum())
            all2 += float(error.square().sum())
            error2 += float(error[still].square().sum())
            top2 += float(top[still].square().sum())
        count = max(1, self._top.numel())
        if beyond > (2.0 * left_out if runs >= _OTHERS else 0.0):
            return False
        if 2 * calm < count:
            return math.sqrt(all2 / count) <= self._granted.rms + self._factor * max(self._rms)
        # Elements that jump would excuse any error of the others. The largest deviations of each element are
        # from different runs: no run has them all, so no run is further off than either bound.
        noise = min(math.sqrt(top2 / calm), max(self._rms) * math.sqrt(count / calm))
        return math.sqrt(error2 / calm) <= self._granted.rms + self._factor * noise

    def _parts(self) -> Iterator[slice]:
        return _parts(self._top.numel())

    def _error(self, part: slice) -> torch.Tensor:
        return _distance(self._compiled, self._target, part)

    def _limit(self, part: slice) -> torch.Tensor:
        size = _numbers(self._target)[part].to(torch.float64).abs().nan_to_num_(0.0, 0.0, 0.0)
        return size.mul_(self._granted.relative).add_(self._granted.element)


def _parts(count: int) -> Iterator[slice]:
    return (slice(start, min(start + _CHUNK, count)) for start in range(0, count, _CHUNK))


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements in row-major order; complex numbers as pairs."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.reshape(-1)


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    count = tensor.numel() * (2 if tensor.is_complex() else 1)
    wide = tensor.dtype in (torch.float64, torch.complex128)
    return torch.zeros(count, dtype=torch.float64 if wide else torch.float32, device=tensor.device)


def _distance(value: torch.Tensor, target: torch.Tensor, part: slice) -> torch.Tensor:
    """Return how far elements are from the target; zero where one of them is not finite."""
    first = _numbers(value)[part].to(torch.float64)
    second = _numbers(target)[part].to(device=first.device, dtype=torch.float64)
    return (first - second).abs_().nan_to_num_(0.0, 0.0, 0.0)


def _kind(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return 0 for finite elements, 1 for NaN, 2 and 3 for infinities; None where all are finite."""
    values = _numbers(tensor)
    if bool(values.isfinite().all()):
        return None
    return (
        values.isnan().to(torch.int8)
        + 2 * values.isposinf().to(torch.int8)
        + 3 * values.isneginf().to(torch.int8)
    )


def _unseen(kind: torch.Tensor | None, seen: list[torch.Tensor | None]) -> bool:
    """Return whether an element is finite, NaN or infinite where no run has it so."""
    known = next((one for one in (kind, *seen) if one is not None), None)
    if known is None:
        return False
    covered = torch.zeros(known.shape, dtype=torch.bool, device=known.device)
    mine = torch.zeros_like(known) if kind is None else kind
    for one in seen:
        covered |= mine == (0 if one is None else one)
    return not bool(covered.all())
