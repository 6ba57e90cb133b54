"""Plain values and the usual dtypes: every tensor is created in one line, as far as possible.

All tensors take the same plain form at once. Those whose own values matter are then found, and keep as few
values as they need, in as few digits. Values that matter (an overflow, a NaN, a permutation) stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch

from torchrepro.edit.arguments import Literal, literals_of, with_literals
from torchrepro.edit.cost import OWN_VALUES, cost_of_values, is_ordinary
from torchrepro.edit.held_tensors import Held, held_tensors, laid_out_like, made_like, with_tensors
from torchrepro.edit.plain_values import (
    FORMS,
    FORMS_OF_ONE,
    Form,
    forms_of,
    plainest,
    rounder_values,
    seeded_noise,
)
from torchrepro.judge.clone import is_plain
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Place, Repro
from torchrepro.torch_api.modes import DisableTorchFunctionSubclass
from torchrepro.torch_api.tensors import hint

_FEW = 64
"""Up to so many elements, the pass finds out which values matter."""
_QUERIES = 12
"""At most so many queries for that: a gain of one value is small."""


_needed_as_they_are: WeakKeyDictionary[Problem, set[tuple[int, int, int, torch.Size]]] = WeakKeyDictionary()
"""Inputs that have to stay as they are, by the number of ops and of inputs, place and size."""


def ordinary_tensors(problem: Problem) -> None:
    """Replace inputs of a subclass, DTensors, sparse and quantised ones by ordinary tensors.

    One that was needed is not tried again when only arguments or values have become plainer.
    """
    needed = _needed_as_they_are.setdefault(problem, set())
    for index, value in enumerate(problem.best.inputs):
        if isinstance(value, torch.Tensor) and value.device.type != "meta" and not is_ordinary(value):
            best = problem.best
            described = (best.ops, len(best.inputs), index, value.shape)
            if described in needed:
                continue
            before, after = best.inputs[:index], best.inputs[index + 1 :]
            ordinary = [replace(best, inputs=(*before, one, *after)) for one in _ordinary(value)]
            if problem.accept_first(ordinary) is None:
                needed.add(described)


def _ordinary(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield ordinary tensors of the same size: its own values where it has memory, and noise."""
    size = [hint(length) for length in tensor.shape]
    if any(length is None for length in size) or tensor.is_quantized:
        return
    with DisableTorchFunctionSubclass(), torch.no_grad():
        if is_plain(tensor):
            yield made_like(tensor.detach().as_subclass(torch.Tensor).clone(), tensor)
        like = torch.empty(size, dtype=tensor.dtype, device=tensor.device)
        yield made_like(seeded_noise(like), tensor)


def plain_values(problem: Problem) -> None:
    """Give every tensor the plainest values with which it still fails."""
    best = problem.best
    tensors = [each for each in held_tensors(best) if cost_of_values(each.tensor)]
    if not tensors:
        return
    places = places_of(problem)
    forms = FORMS if any(each.tensor.numel() > 1 for each in tensors) else FORMS_OF_ONE
    guesses = [with_form(best, tensors, form, places) for form in forms]
    if problem.accept_first(guesses) == 0:
        return
    needy: Sequence[Held] = tensors
    if len(tensors) > 1:
        start = problem.best  # tensors whose values matter keep those
        needy = problem.minimise(
            tensors, lambda kept: with_form(start, [t for t in tensors if t not in kept], plainest, places)
        )
    for each in needy:
        _own_form(problem, each, places[each])


def with_form(
    repro: Repro, tensors: Sequence[Held], form: Form, places: Mapping[Held, tuple[int, ...]]
) -> Repro:
    """Return the repro with values of one form in these tensors."""
    return with_tensors(repro, {each: form(each.tensor, places[each]) for each in tensors})


def places_of(problem: Problem) -> dict[Held, tuple[int, ...]]:
    """Return the index, in each tensor, of the element that the failing one depends on."""
    table = problem.dimensions()
    at = {(axis.held, axis.axis): each.at for each in table.dimensions for axis in each.axes}
    return {
        each: tuple(at.get((number, axis), 0) for axis in range(each.tensor.dim()))
        for number, each in enumerate(table.held)
    }


def _own_form(problem: Problem, held: Held, place: tuple[int, ...]) -> None:
    """Give one tensor its plainest form, else the fewest of its own values, in the fewest digits."""
    best = problem.best
    tensor = _now(problem, held)
    problem.accept_first([with_tensors(best, {held: form(tensor, place)}) for form in forms_of(tensor)])
    tensor = _now(problem, held)
    if 1 < tensor.numel() <= _FEW and cost_of_values(tensor) >= OWN_VALUES:
        _fewer_values(problem, held)
    best, tensor = problem.best, _now(problem, held)
    if tensor.numel() <= _FEW and cost_of_values(tensor):
        problem.accept_first([with_tensors(best, {held: rounder}) for rounder in rounder_values(tensor)])


def _fewer_values(problem: Problem, held: Held) -> None:
    """Set half of the values to the plainest one, then quarters, and so on, as far as it still fails."""
    limit = problem.queries.asked + _QUERIES
    size = _now(problem, held).numel()
    while size > 1:
        size = (size + 1) // 2
        for start in range(0, _now(problem, held).numel(), size):
            tensor = _now(problem, held)
            if problem.queries.asked >= limit:
                return
            changed = tensor.detach().clone().reshape(-1)
            changed[start : start + size] = plainest(tensor, ()).detach().reshape(-1)[0]
            made = made_like(laid_out_like(changed.reshape(tensor.shape), tensor), tensor)
            problem.accept(with_tensors(problem.best, {held: made}))


def _now(problem: Problem, held: Held) -> torch.Tensor:
    """Return the tensor at this place in the current best."""
    return next(each.tensor for each in held_tensors(problem.best) if each == held)


Unusual = Held | Literal


def usual_dtypes(problem: Problem) -> None:
    """Keep only the unusual dtypes that the failure needs."""
    problem.leave_out(unusual_dtypes(problem.best), with_usual_dtypes)


def unusual_dtypes(repro: Repro) -> list[Unusual]:
    """Return the tensors and arguments whose dtype is not the usual one of its kind."""
    items: list[Unusual] = [
        each for each in held_tensors(repro) if usual(each.tensor.dtype) is not each.tensor.dtype
    ]
    if repro.place is not Place.BEFORE_CAPTURE:
        for node in repro.graph.graph.nodes:
            items += [at for at, dtype in literals_of(node, torch.dtype) if usual(dtype) is not dtype]
    return items


def with_usual_dtypes(repro: Repro, chosen: Sequence[Unusual]) -> Repro:
    """Return the repro with the usual dtype in these places, and the values converted to it."""
    others = {}
    for each in chosen:
        if isinstance(each, Held):
            values = each.tensor.detach().to(usual(each.tensor.dtype))
            others[each] = made_like(laid_out_like(values, each.tensor), each.tensor)
    dtypes = [pair for node in repro.graph.graph.nodes for pair in literals_of(node, torch.dtype)]
    literals = {at: usual(dtype) for at, dtype in dtypes if at in chosen}
    return with_literals(with_tensors(repro, others), literals)


def usual(dtype: torch.dtype) -> torch.dtype:
    """Return the usual dtype for this kind of values: bool, complex64, float32 or int64."""
    if dtype is torch.bool:
        return dtype
    if dtype.is_complex:
        return torch.complex64
    return torch.float32 if dtype.is_floating_point else torch.int64
