"""Response: what becomes of a result when the inputs change by a rounding, measured in float64.

In float64 nothing but the conditioning is seen: no rounding of the computation itself is of that size.

Inputs changed by about one rounding: what a computation makes of that tells how it is conditioned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from torchrepro.execute.judge_repro import Prepared, truth_of
from torchrepro.judge.leaves import tensors_in
from torchrepro.judge.randomness import Draws, RecordRandom
from torchrepro.judge.reference import without_compilers
from torchrepro.nouns.repro import Repro
from torchrepro.torch_api.generators import capture_rng_state, same_randomness


def nudged(inputs: tuple[Any, ...], seed: int, eps: float | None = None) -> tuple[Any, ...]:
    """The inputs with each floating number changed by one rounding of its dtype, up or down.

    `eps` is another relative change, for inputs that have been widened. The same object stays one object;
    integers and what holds no numbers stay as they are.
    """
    generator = torch.Generator().manual_seed(seed)
    made: dict[int, Any] = {}
    return tuple(made.setdefault(id(item), _nudged(item, generator, eps)) for item in inputs)


def rounding_of(dtype: torch.dtype) -> float:
    """The relative distance of neighbouring numbers."""
    return torch.finfo(dtype.to_real() if dtype.is_complex else dtype).eps


def can_be_nudged(value: Any) -> bool:
    """Whether it holds floating numbers that can be changed one by one."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        return False
    return value.is_floating_point() or value.is_complex()


def _nudged(value: Any, generator: torch.Generator, eps: float | None) -> Any:
    if not can_be_nudged(value):
        return value
    step = rounding_of(value.dtype) if eps is None else eps
    signs = torch.randint(0, 2, value.shape, generator=generator).mul_(2).sub_(1).to(value.device)
    wide = torch.complex128 if value.is_complex() else torch.float64
    with torch.no_grad():
        changed = value.detach().to(wide) * (1 + step * signs)
        return changed.to(value.dtype).requires_grad_(value.requires_grad)


_DRAWS = 4
_SMALLEST = 1e-10
"""The smallest change that stands out from the rounding of float64 itself."""


@dataclass(frozen=True, slots=True)
class Response:
    """The largest of several random changes."""

    eps: float = 0.0
    """The relative change of the inputs; 0 where nothing can be changed: no floating numbers."""
    change: float = 0.0
    """The relative change of the result (root mean squares); infinite where a result of zero changes."""
    moved: int = 0
    """Elements of the result that changed at all, in the draw in which most did."""
    elements: int = 0
    discrete: bool = False
    """The result holds integers or truth values: it changes in jumps."""
    zero: bool = False
    """The result is zero everywhere."""

    @property
    def factor(self) -> float:
        return self.change / self.eps if self.eps else 0.0


def response_of(repro: Repro) -> Response:
    """Run a graph in float64 on its inputs and on inputs that are changed by a rounding."""
    repro = replace(repro, backward=False, earlier=())
    eps = max((rounding_of(value.dtype) for value in repro.inputs if can_be_nudged(value)), default=0.0)
    if not eps:
        return Response()
    eps = max(eps, _SMALLEST)
    prepared = Prepared(repro)
    random = RecordRandom()
    start = capture_rng_state().starting_from(repro.ambient.rng or {})
    with same_randomness(start), without_compilers(), random:
        graph = prepared.graph()
        prepared.observe(graph, graph, prepared.inputs())
    wide = tuple(_widened(value) for value in repro.inputs)
    results = _results(repro, wide, random.draws)
    found = [
        _compared(results, _results(repro, nudged(wide, seed, eps), random.draws), eps)
        for seed in range(_DRAWS)
    ]
    largest = max(found, key=lambda each: each.change)
    return replace(largest, moved=max(each.moved for each in found))


def _results(repro: Repro, inputs: tuple[Any, ...], draws: Draws) -> list[torch.Tensor]:
    run, _ = truth_of(Prepared(replace(repro, inputs=inputs)), draws)
    return [tensor.detach() for _, tensor in tensors_in(run.outputs)]


def _compared(before: list[torch.Tensor], after: list[torch.Tensor], eps: float) -> Response:
    change = 0.0
    moved = elements = 0
    for one, other in zip(before, after, strict=True):
        if one.shape != other.shape:
            continue
        was, now = (tensor.to(_wide(tensor)) for tensor in (one, other))
        known = was.isfinite() & now.isfinite()
        moved += int((was != now)[known].sum())
        elements += one.numel()
        size, distance = float(was[known].abs().norm()), float((now - was)[known].abs().norm())
        if distance:
            change = max(change, distance / size if size else float("inf"))
    discrete = not any(tensor.is_floating_point() or tensor.is_complex() for tensor in before)
    return Response(eps, change, moved, elements, discrete, not any(bool(tensor.any()) for tensor in before))


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _widened(value: Any) -> Any:
    return value.detach().to(_wide(value)) if can_be_nudged(value) else value
