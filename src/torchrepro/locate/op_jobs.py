"""Check whether an op is wrong on its operands, in a child process, and what rounding explains.

Values stay in the child, which returns only numbers. An op that computes a wrong value is judged again on the
operands that the compiled graph had, without compiling anything. An inherited error, however large, is in the
operands; the rest is the op's own. This separates accumulated error from an op that is wrong, inside a fused
kernel.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import msgspec
import torch

from torchrepro.cut.record_values import Kept, NotRecorded, observed_values, raising_node
from torchrepro.cut.subgraph import piece
from torchrepro.cut.units import ambient_at, units_of
from torchrepro.cut.watched_values import watched_in
from torchrepro.execute.judge_repro import Prepared, judge_repro, truth_of
from torchrepro.judge.compare import same
from torchrepro.judge.execute import Run
from torchrepro.judge.models import Judged, Phase
from torchrepro.judge.op_forms import RecordRandom
from torchrepro.judge.rule import Rule
from torchrepro.locate.sensitivity import DRAWS, eager_results, nudged
from torchrepro.locate.watched_graph import Odd, Seen, Sighting
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict
from torchrepro.state.ambient import applied_settings

_REJUDGE_SECONDS = 20.0
"""Time limit for judging the ops of wrong values again, in the order of the graph."""
_BLOCK = 1 << 22
"""Elements that are compared at a time: three copies of them in float64 are 100 MB."""


def relative_error(value: Any, truth: Any) -> float | None:
    """Return the largest error relative to the truth's largest magnitude; None if not comparable.

    If the truth is zero everywhere, any error counts as 1. A number that is not finite where the truth is
    finite has an infinite error.
    """
    if not _comparable(value, truth):
        return None
    worst = scale = 0.0
    for part, true in _blocks(value, truth):
        known = true.isfinite()
        if bool((known & ~part.isfinite() & _rounded(true, value.dtype).isfinite()).any()):
            return float("inf")
        both = known & part.isfinite()
        worst = max(worst, _largest((part - true)[both]))
        scale = max(scale, _largest(true[known]))
    return worst / scale if scale else float(worst > 0)


def oddities(value: Any, truth: Any) -> Odd:
    """Return how many elements are not finite; without a truth none of them counts as strange."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return Odd()
    compared = _comparable(value, truth)
    nan = infinite = strange = 0
    for part, true in _blocks(value, truth if compared else value):
        nan += int(part.isnan().sum())
        infinite += int(part.isinf().sum())
        if compared:
            strange += int((~part.isfinite() & true.isfinite()).sum())
    return Odd(nan, infinite, strange)


def _comparable(value: Any, truth: Any) -> bool:
    both = isinstance(value, torch.Tensor) and isinstance(truth, torch.Tensor)
    return both and value.shape == truth.shape and value.layout is truth.layout is torch.strided


def _blocks(value: torch.Tensor, truth: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield both as rows of float64, a block at a time; a complex number is two elements."""
    plain = (
        torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        for tensor in (value.detach(), truth.detach())
    )
    for part, true in zip(*(tensor.reshape(-1).split(_BLOCK) for tensor in plain), strict=False):
        yield part.to("cpu", torch.float64), true.to("cpu", torch.float64)


def _rounded(true: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the truth rounded to the dtype: beyond its range, infinity is right."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return true
    return true.to(dtype.to_real() if dtype.is_complex else dtype).to(torch.float64)


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _differs(single: Repro, got: tuple[torch.Tensor, ...], rule: Rule) -> bool | None:
    """Return whether an op's result differs from eager and float64 on its operands; None: unknown."""
    random = RecordRandom()
    with torch.no_grad():
        eager = eager_results(single, random)
        if random.is_random:
            return None  # it draws other random numbers alone
        truth = tuple(truth_of(Prepared(single), random.draws)[0].outputs)
        # In a fused kernel an operand is not rounded as it is when it is returned, so differences that a
        # rounding of the operands causes are not the op's fault.
        others = (replace(single, inputs=nudged(single.inputs, seed)) for seed in range(DRAWS))
        roundings = (eager_results(other, RecordRandom()) for other in others)
        return not any(same(one, got, truth, rule=rule) for one in chain([eager], roundings))


def watch(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Run all sides of a repro whose last outputs are the values of the named nodes; return a `Sighting`."""
    names: list[str] = payload["names"]
    judged, rule = Judged(), Rule(strict=repro.strict, tol=repro.tolerance)
    with applied_settings(repro.ambient):
        verdict = judge_repro(repro, fp64=payload.get("fp64", True), phase=phase, steady=True, judged=judged)
        found = _sighting(repro, names, verdict, judged.runs, rule)
    return msgspec.to_builtins(found)


def raising(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Return the node at which eager raises."""
    phase("eager")
    return raising_node(repro)


def _sighting(
    repro: Repro, names: list[str], verdict: Verdict, runs: Mapping[str, Run], rule: Rule
) -> Sighting:
    eager, compiled, truth = (_last_outputs(runs.get(side), names) for side in ("eager", "compiled", "truth"))
    leaves = {} if verdict.comparison is None else watched_in(verdict.comparison, repro, names)
    wrong = [name for name in names if name in leaves and not leaves[name].same]
    at_fault = _at_fault(repro, compiled, wrong, rule) if wrong else {}
    seen = tuple(
        Seen(
            name,
            wrong=name in wrong,
            at_fault=at_fault.get(name),
            eager=relative_error(eager[name], truth[name]),
            compiled=relative_error(compiled[name], truth[name]),
            eager_odd=oddities(eager[name], truth[name]),
            compiled_odd=None if compiled[name] is None else oddities(compiled[name], truth[name]),
        )
        for name in names
    )
    own = () if verdict.comparison is None else verdict.comparison.differing
    watched = {leaf.path for leaf in leaves.values()}
    elsewhere = tuple(leaf.path for leaf in own if leaf.path not in watched)
    given = zip(repro.graph.graph.find_nodes(op="placeholder"), repro.inputs, strict=False)
    nan_inputs = tuple(node.name for node, value in given if oddities(value, None).nan)
    return Sighting(replace(verdict, comparison=None), seen, elsewhere, nan_inputs)


def _last_outputs(run: Run | None, names: list[str]) -> dict[str, Any]:
    """Return the last outputs of a run by name; None for each if there was no such run."""
    if run is None or not isinstance(run.outputs, tuple | list):
        return dict.fromkeys(names)
    return dict(zip(names, list(run.outputs)[len(run.outputs) - len(names) :], strict=True))


def _at_fault(
    repro: Repro, values: Mapping[str, Any], wrong: list[str], rule: Rule
) -> dict[str, bool | None]:
    """Return for each wrong value whether its op is wrong, up to the first that is."""
    plain = observed_values(repro, limit=0)  # numbers and sizes only
    kept = {name: Kept(value.detach()) for name, value in values.items() if isinstance(value, torch.Tensor)}
    recording = replace(plain, values={**plain.values, **kept}, at_use={})
    graph, whole = repro.graph.graph, replace(repro, earlier=(), symbols=(), backward=False)
    states, units = ambient_at(graph, repro.ambient), units_of(graph, plain.several)
    found: dict[str, bool | None] = dict.fromkeys(wrong)
    started = time.monotonic()
    for name in wrong:
        unit = next((unit for unit in units if name in unit.nodes and not unit.is_state), None)
        if unit is not None and unit.name not in recording.late:
            cut = piece(whole, recording, unit.nodes)
            outputs: Any = cut.graph.graph.output_node().args[0] if cut is not None else ()
            # Unknown if a value is missing, or if this op alone cannot run in float64.
            with suppress(NotRecorded, TorchReproError):
                got = tuple(recording.result(node.name) for node in outputs)
                if cut is not None:
                    found[name] = _differs(replace(cut, ambient=states[unit.name]), got, rule)
        if found[name] or time.monotonic() - started > _REJUDGE_SECONDS:
            break
    return found
