"""Compare the registered backward of an operator with finite differences, along random directions.

In float64 if the operator computes in it, else in float32. What cannot be decided is not decided: a step that
is too coarse or too fine shows in two steps that disagree, and then the check says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from torchrepro.execute.operator_calls import Call
from torchrepro.torch_api.generators import capture_rng_state, same_randomness
from torchrepro.torch_api.pytree import tree_flatten, tree_leaves, tree_unflatten

_STEPS = {torch.float64: (1e-3, 1e-4, 1e-5, 1e-6), torch.float32: (1e-1, 3e-2, 1e-2, 3e-3)}
_TOLERANCE = {torch.float64: 1e-3, torch.float32: 5e-2}
"""Relative difference to the derivative that counts, beyond ten times that of two step sizes."""
_DIRECTIONS = 3
_AWAY = 1e-2
"""How far, relatively, the point is moved at random: recorded values often lie on a kink (`relu` at 0)."""
_ARGUMENTS = 6


class NotChecked(Exception):
    """The derivative cannot be compared here; the message says why."""


class Surrogate(NotChecked):
    """The gradient is not meant to be the derivative; no other dtype will tell more."""


class WrongGradient(NamedTuple):
    """A derivative that finite differences contradict."""

    leaf: int
    """Place of the argument among the leaves of all arguments."""
    registered: float
    measured: float
    dtype: torch.dtype
    ratio: float | None
    """Registered through measured, if that is the same in every direction."""


class _Direction(NamedTuple):
    registered: float
    measured: float
    error: float

    def is_wrong(self, tolerance: float) -> bool:
        size = max(abs(self.registered), abs(self.measured))
        return abs(self.registered - self.measured) > 10 * self.error + tolerance * size


def check_backward(call: Call) -> list[WrongGradient]:
    """Return the arguments whose gradient is wrong; raise `NotChecked` with the reason if none can be."""
    reason = "none of its tensors needed gradients"
    for dtype in _STEPS:
        try:
            return _checked(call, dtype)
        except Surrogate:
            raise
        except NotChecked as failure:
            reason = str(failure)
    raise NotChecked(reason)


def _checked(call: Call, dtype: torch.dtype) -> list[WrongGradient]:
    leaves, structure = tree_flatten(call.fresh(dtype))
    places = [place for place in sorted(call.with_gradients) if leaves[place].dtype is dtype]
    if not places:
        raise NotChecked(f"no argument that needs gradients becomes {dtype}")
    if len({leaf.untyped_storage().data_ptr() for leaf in leaves if isinstance(leaf, torch.Tensor)}) < sum(
        isinstance(leaf, torch.Tensor) for leaf in leaves
    ):
        raise NotChecked("arguments share memory")
    noise = torch.Generator().manual_seed(0)
    state = capture_rng_state()

    def run(values: Sequence[Any], structure: Any = structure) -> list[torch.Tensor]:
        with same_randomness(state):
            return _run(call.op, structure, values)

    results = run(leaves)
    _require_alike(results, run(*tree_flatten(call.fresh())), dtype)
    cotangents = [_random(result, noise) for result in results]
    given = [leaf.detach().requires_grad_() if place in places else leaf for place, leaf in enumerate(leaves)]
    counted = _with_gradients(run(given), [given[place] for place in places], cotangents)

    wrong, reasons = [], list[str]()
    for place in places[:_ARGUMENTS]:

        def at(value: torch.Tensor, place: int = place) -> torch.Tensor:
            found = run([*leaves[:place], value, *leaves[place + 1 :]])
            if any(torch.equal(one, value) for one in found):
                raise Surrogate("its result is its argument, so its backward is what it is for")
            parts = [(found[one].to(torch.float64) * cotangents[one]).sum().cpu() for one in counted]
            return torch.stack(parts).sum()

        try:
            directions = _directions(at, leaves[place], noise, dtype)
        except Surrogate:
            raise
        except NotChecked as failure:
            reasons.append(str(failure))
            continue
        bad = [one for one in directions if one.is_wrong(_TOLERANCE[dtype])]
        if len(bad) > _DIRECTIONS // 2:
            wrong.append(WrongGradient(place, bad[0].registered, bad[0].measured, dtype, _ratio(bad)))
    if len(reasons) == len(places[:_ARGUMENTS]):
        raise NotChecked(reasons[0])
    return wrong


def _with_gradients(
    results: Sequence[torch.Tensor], given: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
) -> list[int]:
    """Return the places of the results that backward takes gradients of; of all if there are none.

    Norms and attention also return what their backward needs (rstd, logsumexp), and ignore its gradient.
    """

    def reaches(result: torch.Tensor, cotangent: torch.Tensor) -> bool:
        found = _gradients(result, given, cotangent.to(result)) if result.requires_grad else ()
        return any(one is not None and bool(one.any()) for one in found)

    pairs = enumerate(zip(results, cotangents, strict=True))
    return [place for place, pair in pairs if reaches(*pair)] or list(range(len(results)))


def _gradients(
    result: torch.Tensor, given: Sequence[torch.Tensor], cotangent: torch.Tensor | None = None
) -> Sequence[torch.Tensor | None]:
    try:
        return torch.autograd.grad(result, given, cotangent, retain_graph=True, allow_unused=True)
    except Exception as failure:  # the user's code; eager raises it as well
        raise NotChecked(f"its backward raises {type(failure).__name__}") from failure


def _directions(
    at: Callable[[torch.Tensor], torch.Tensor], leaf: torch.Tensor, noise: torch.Generator, dtype: torch.dtype
) -> list[_Direction]:
    """Return the derivatives along random directions, near the recorded value of one argument."""
    scale = float(leaf.to(torch.float64).square().mean().sqrt()) or 1.0
    point = leaf + (_random(leaf, noise) * (_AWAY * scale)).to(leaf)
    given = point.detach().requires_grad_()
    total = at(given)
    if not total.requires_grad:
        raise NotChecked("its result does not depend on what needs gradients")
    (found,) = _gradients(total, [given])
    gradient = torch.zeros_like(given) if found is None else found
    wanted = (_random(leaf, noise) * scale for _ in range(_DIRECTIONS))
    return [_along(at, point, gradient, direction, dtype) for direction in wanted]


def _along(
    at: Callable[[torch.Tensor], torch.Tensor],
    point: torch.Tensor,
    gradient: torch.Tensor,
    direction: torch.Tensor,
    dtype: torch.dtype,
) -> _Direction:
    """Return the derivative along a direction: as registered, and as two steps agree on best."""
    registered = float((gradient.to(torch.float64) * direction).sum())
    measured = []
    with torch.no_grad():
        for step in _STEPS[dtype]:
            ahead, behind = (float(at(point + (side * direction).to(point))) for side in (step, -step))
            measured.append((ahead - behind) / (2 * step))
    if not all(map(math.isfinite, measured)):
        raise NotChecked("it is not finite near the recorded values")
    if registered and not any(measured[-2:]):
        raise Surrogate("it is piecewise constant, so its gradient is a surrogate by intent")
    error, best = min((abs(one - other), other) for one, other in pairwise(measured))
    if error > 0.1 * max(abs(best), abs(registered)):
        raise NotChecked("finite differences do not converge at the recorded values")
    return _Direction(registered, best, error)


def _run(op: Any, structure: Any, leaves: Sequence[Any]) -> list[torch.Tensor]:
    """Return the floating results of the operator; raise `NotChecked` if it does not run."""
    args, kwargs = tree_unflatten(list(leaves), structure)
    try:
        with torch.enable_grad():
            results = tree_leaves(op(*args, **kwargs))
    except Exception as failure:  # an operator may refuse a dtype in any way
        first = str(failure).partition("\n")[0][:120]
        raise NotChecked(f"{type(failure).__name__}: {first}") from failure
    found = [one for one in results if isinstance(one, torch.Tensor) and one.is_floating_point()]
    if not found:
        raise NotChecked("it has no floating results")
    return found


def _require_alike(wide: Sequence[torch.Tensor], plain: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
    """Raise if the results differ by more than precision: a kernel may read float64 as if it were float32."""
    for one, other in zip(wide, plain, strict=True):
        scale = float(other.detach().to(torch.float64).abs().max()) if other.numel() else 0.0
        gap = (one.detach().to(torch.float64) - other.detach().to(torch.float64)).abs()
        if one.dtype is not dtype or (gap.numel() and not float(gap.max()) <= 0.05 * scale + 1e-12):
            raise NotChecked(f"it does not compute in {dtype}")


def _random(like: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    return torch.randn(like.shape, generator=noise, dtype=torch.float64).to(like.device)


def _ratio(directions: Sequence[_Direction]) -> float | None:
    ratios = [one.registered / one.measured for one in directions if one.measured]
    if len(ratios) < len(directions) or max(ratios) - min(ratios) > 0.02 * abs(ratios[0]):
        return None
    return ratios[0]
