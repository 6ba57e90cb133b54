"""Run a minimal bundle once and tell what the gate of its bucket asks: a job for a process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import torch

from torchrepro.execute.judge_repro import judge_repro, load_for_job
from torchrepro.execute.torch_comparisons import compare_by_default, tensors_of
from torchrepro.hunt.filing import Examined
from torchrepro.hunt.op_calls import Calls, calls_of
from torchrepro.judge.compare import tensors_in
from torchrepro.judge.execute import Run
from torchrepro.judge.models import Judged, Phase
from torchrepro.nouns.repro import Repro
from torchrepro.torch_api.generators import same_states

_CHOOSING = ("argmax", "argmin", "max", "min", "sort", "topk", "kthvalue", "median", "nanmedian", "mode")
"""Ops that return the places of the elements that they choose, in the dimension of their first number."""


def examine(payload: Mapping[str, Any], phase: Phase) -> Any:
    """Judge a bundle; return `Examined` as plain data."""
    repro = load_for_job(dict(payload), phase)
    judged = Judged()
    verdict = judge_repro(repro, fp64=payload.get("fp64", True), phase=phase, judged=judged)
    found = Examined(
        verdict=verdict,
        dtypes=tuple(sorted({str(x.dtype).removeprefix("torch.") for _, x in tensors_in(repro.inputs)})),
        values=tuple(sorted({word for _, tensor in tensors_in(repro.inputs) for word in _unusual(tensor)})),
    )
    eager, compiled = judged.runs.get("eager"), judged.runs.get("compiled")
    if eager is not None and compiled is not None:
        found = _compared(found, repro, eager, compiled, judged.runs.get("truth"))
    return msgspec.to_builtins(found)


def _compared(found: Examined, repro: Repro, eager: Run, compiled: Run, truth: Run | None) -> Examined:
    ours, theirs = tensors_of(eager), tensors_of(compiled)
    true = tensors_of(truth) if truth is not None else {}
    both = [path for path in found.wrong if path in ours and path in theirs]
    by_default, close = compare_by_default(ours, theirs)
    calls = calls_of(repro) if both else None
    ties = [path for path in both if calls and _is_tie(calls, path, ours[path], theirs[path])]
    floating = [path for path in both if ours[path].is_floating_point() or ours[path].is_complex()]
    return replace(
        found,
        differs_by_default=by_default,
        close=close,
        same_draws=same_states(eager.rng, compiled.rng),
        ties=tuple(ties),
        without_truth=tuple(path for path in floating if path not in true),
    )


def _unusual(tensor: torch.Tensor) -> Iterator[str]:
    """Yield in words what is unusual about a tensor's values."""
    if not tensor.numel():
        yield "empty"
    if not tensor.numel() or not tensor.is_floating_point() or tensor.dtype.itemsize == 1:
        return
    values, info = tensor.detach().abs(), torch.finfo(tensor.dtype)
    finite = values[values.isfinite()]
    if bool(values.isnan().any()):
        yield "nan"
    if bool(values.isinf().any()):
        yield "inf"
    if bool(((finite > 0) & (finite < info.tiny)).any()):
        yield "subnormal"
    if bool((finite > info.max**0.5).any()):
        yield "huge"


def _is_tie(calls: Calls, path: str, eager: torch.Tensor, compiled: torch.Tensor) -> bool:
    """Return whether both sides of an integer result are the places of equal elements."""
    last = max((n for n in calls.results.get(path, ()) if calls.calls[n].computes), default=None)
    if last is None or calls.calls[last].op not in _CHOOSING or eager.dtype is not torch.int64:
        return False
    source = calls.calls[last].operands[0].value
    if source is None or eager.shape != compiled.shape or compiled.dtype is not torch.int64:
        return False
    pairs = zip(_chosen(source, eager), _chosen(source, compiled), strict=True)
    return any(
        one is not None and other is not None and bool(((one == other) | (one.isnan() & other.isnan())).all())
        for one, other in pairs
    )


def _chosen(source: torch.Tensor, places: torch.Tensor) -> Iterator[torch.Tensor | None]:
    """Yield what the places choose of all elements, then along each dimension; None where they do not fit."""
    flat = source.reshape(-1)
    yield flat[places] if _within(places, flat.numel()) else None
    for dim in range(source.dim()):
        index = places if places.dim() == source.dim() else places.unsqueeze(dim)
        others = [a == b for n, (a, b) in enumerate(zip(index.shape, source.shape, strict=False)) if n != dim]
        fits = index.dim() == source.dim() and all(others) and _within(places, source.shape[dim])
        yield source.gather(dim, index) if fits else None


def _within(places: torch.Tensor, size: int) -> bool:
    return bool(((places >= 0) & (places < size)).all())
