"""Plainer tensors of the same elements: contiguous, without dimensions of size 1."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchrepro.edit.arguments import with_literals
from torchrepro.edit.held_tensors import Held, contiguous, held_tensors, made_like, with_tensors
from torchrepro.edit.validity import why_invalid
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Place, Repro
from torchrepro.state.fake_run import OperatorLog, run_on_fakes

_TAKES_ANY_RANK = frozenset(
    {
        *("sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "max", "min", "any", "all", "var"),
        *("std", "cumsum", "_softmax", "_log_softmax", "clone", "_to_copy", "copy", "copy_", "detach"),
    }
)
"""Beside ops that go element by element. Others ask for a rank, though their fake kernels may not say so."""


def plainer_layouts(problem: Problem) -> None:
    """Make contiguous what need not be otherwise."""
    best = problem.best
    strange = [each for each in held_tensors(best) if not each.tensor.is_contiguous()]
    if strange:
        problem.minimise(strange, lambda kept: all_contiguous(best, [s for s in strange if s not in kept]))


def drop_ranks(problem: Problem) -> bool:
    """Drop dimensions of size 1 where the graph runs without."""
    return problem.accept(squeezed(problem.best))


def all_contiguous(repro: Repro, chosen: Iterable[Held]) -> Repro:
    """The repro with these tensors contiguous."""
    return with_tensors(repro, {each: contiguous(each.tensor) for each in chosen})


def squeezed(repro: Repro) -> Repro | None:
    """Every tensor without its dimensions of size 1; None where nothing changes or it would not run."""
    if repro.symbols or repro.earlier or repro.place is Place.BEFORE_CAPTURE:
        return None
    others = {
        each: made_like(_squeezed(each.tensor.detach()).clone(), each.tensor)
        for each in held_tensors(repro)
        if each.tensor.dim() > 1 and 1 in each.tensor.shape
    }
    if not others or not _takes_any_rank(repro):
        return None
    candidate = with_literals(with_tensors(repro, others), {})
    return None if why_invalid(candidate) else candidate


def _squeezed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.squeeze() if tensor.numel() != 1 else tensor.reshape(1)


def _takes_any_rank(repro: Repro) -> bool:
    log = OperatorLog()
    run_on_fakes(repro, log=log)
    pointwise = (torch.Tag.pointwise in op.tags or op._opname in _TAKES_ANY_RANK for op in log.ops)
    return bool(log.ops) and all(pointwise)
