"""Dtypes: float32 for floating values, int64 for whole numbers, in the inputs and in the arguments."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchrepro.edit.arguments import Literal, literals_of, with_literals
from torchrepro.edit.held_tensors import Held, held_tensors, laid_out_like, made_like, with_tensors
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Place, Repro

Unusual = Held | Literal


def usual_dtypes(problem: Problem) -> None:
    """Keep only the unusual dtypes that the failure needs."""
    best = problem.best
    items = unusual_dtypes(best)
    if items:
        problem.minimise(items, lambda kept: with_usual_dtypes(best, [i for i in items if i not in kept]))


def unusual_dtypes(repro: Repro) -> list[Unusual]:
    """Tensors and arguments whose dtype a reader would not expect."""
    items: list[Unusual] = [
        each for each in held_tensors(repro) if usual(each.tensor.dtype) is not each.tensor.dtype
    ]
    if repro.place is not Place.BEFORE_CAPTURE:
        for node in repro.graph.graph.nodes:
            items += [at for at, dtype in literals_of(node, torch.dtype) if usual(dtype) is not dtype]
    return items


def with_usual_dtypes(repro: Repro, chosen: Sequence[Unusual]) -> Repro:
    """The repro with the usual dtype in these places; the values stay as near as they can."""
    others = {}
    for each in chosen:
        if isinstance(each, Held):
            values = each.tensor.detach().to(usual(each.tensor.dtype))
            others[each] = made_like(laid_out_like(values, each.tensor), each.tensor)
    places = {each for each in chosen if isinstance(each, Literal)}
    literals = {
        at: usual(dtype)
        for node in repro.graph.graph.nodes
        for at, dtype in literals_of(node, torch.dtype)
        if at in places
    }
    return with_literals(with_tensors(repro, others), literals)


def usual(dtype: torch.dtype) -> torch.dtype:
    """The dtype that a reader expects for this kind of values."""
    if dtype is torch.bool:
        return dtype
    if dtype.is_complex:
        return torch.complex64
    return torch.float32 if dtype.is_floating_point else torch.int64
