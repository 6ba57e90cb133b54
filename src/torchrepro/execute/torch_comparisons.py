"""What torch's own comparisons say about a run, and whether inductor's rounding explains its failure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchrepro.execute.judge_repro import judge_repro
from torchrepro.judge.execute import Run
from torchrepro.judge.models import Phase
from torchrepro.nouns.errors import in_a_line
from torchrepro.nouns.repro import AOT_INDUCTOR, Repro
from torchrepro.nouns.verdict import Verdict
from torchrepro.torch_api.configs import default_of
from torchrepro.torch_api.dynamo import same

_CASTS = "emulate_precision_casts"
_TOLERANCE = 1e-4
"""The tolerance of torch's own benchmarks for inference."""

_NO_TENSORS = "unknown: the run has no tensors to compare"

Tensors = Mapping[str, torch.Tensor]


def tensors_of(run: Run) -> dict[str, torch.Tensor]:
    """Return every tensor of a run by its path, in the notation of `judge/compare.py`."""
    parts = {"out": run.outputs, "grad": run.gradients, "inputs": run.inputs, "state": run.state}
    return {path: tensor for name, value in parts.items() for path, tensor in _walk(value, name)}


def _walk(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        attributes = dataclasses.is_dataclass(value)
        for key, child in value.items():
            step = f".{key}" if attributes else f'["{key}"]' if isinstance(key, str) else f"[{key!r}]"
            yield from _walk(child, path + step)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        names = getattr(type(value), "_fields", None)
        for number, child in enumerate(value):
            yield from _walk(child, path + (f".{names[number]}" if names else f"[{number}]"))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _walk(getattr(value, field.name, None), f"{path}.{field.name}")


def ask_torch(eager: Tensors, compiled: Tensors, truth: Tensors) -> dict[str, str]:
    """Return what torch's own comparisons say about the tensors of a run, by the names of `Evidence`."""
    paths = [path for path in eager if path in compiled]
    return {
        "same": _same(paths, eager, compiled, truth) if paths else _NO_TENSORS,
        "default_tolerances": compare_by_default(eager, compiled)[1],
    }


def _same(paths: list[str], eager: Tensors, compiled: Tensors, truth: Tensors) -> str:
    try:
        differing = [
            path
            for path in paths
            if not same(eager[path], compiled[path], truth.get(path), tol=_TOLERANCE, equal_nan=True)
        ]
    except Exception as exc:
        return f"unknown: {in_a_line(exc)}"
    without = "" if all(path in truth for path in paths) else ", without a float64 reference for all"
    told = f"tol={_TOLERANCE:g}{without}"
    return f"fails on {', '.join(differing[:3])} ({told})" if differing else f"passes ({told})"


def compare_by_default(eager: Tensors, compiled: Tensors) -> tuple[bool | None, str]:
    """Say whether `torch.testing.assert_close` fails (None: unknown), and in words."""
    paths = [path for path in eager if path in compiled]
    for path in paths:
        try:
            torch.testing.assert_close(compiled[path], eager[path], equal_nan=True)
        except AssertionError as exc:
            lines = [line for line in str(exc).splitlines() if "ismatched" in line or "difference" in line]
            return True, f"fails on {path}: {'; '.join(lines[:2]) or in_a_line(exc)}"
        except Exception as exc:
            return None, f"unknown: {in_a_line(exc)}"
    return (False, "passes with default tolerances") if paths else (None, _NO_TENSORS)


def ask_for_precision_casts(repro: Repro, verdict: Verdict, phase: Phase) -> str:
    """Judge a repro again with inductor rounding as eager does between ops; say whether it still fails."""
    if repro.compiler.name not in ("inductor", AOT_INDUCTOR):
        return f"not applicable: the compiler is {repro.compiler.name}"
    if not verdict.fails:
        return "not applicable: it does not fail on this machine"
    settings = dict(repro.ambient.configs)
    inductor = dict(settings.get("inductor", {}))
    if inductor.get(_CASTS, default_of("inductor", _CASTS)):
        return "it fails with emulate_precision_casts on already"
    settings["inductor"] = {**inductor, _CASTS: True}
    again = judge_repro(replace(repro, ambient=replace(repro.ambient, configs=settings)), phase=phase)
    if not again.testable:
        return f"unknown: {again.summary}"
    return (
        "it still fails with emulate_precision_casts" if again.fails else "emulate_precision_casts hides it"
    )


def measurements(
    repro: Repro, verdict: Verdict, sides: Mapping[str, Tensors], phase: Phase
) -> dict[str, Any]:
    """Return all answers that need the values of a run."""
    eager, compiled, truth = (sides.get(side, {}) for side in ("eager", "compiled", "truth"))
    return {
        **ask_torch(eager, compiled, truth),
        "precision_casts": ask_for_precision_casts(repro, verdict, phase),
    }
