"""What runs in a child process while the culprit op is looked for: values stay there, numbers come back.

An op that computes a wrong value is judged again on the operands that the compiled graph had, without
compiling anything. An error that was inherited, however large it has grown, is in the operands; what is left
is the op's own. This tells error that accumulates from an op that is wrong, inside a fused kernel.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import msgspec
import torch

from torchrepro.cut.record_values import Kept, NotRecorded, observed_values, raising_node
from torchrepro.cut.subgraph import ambient_at, piece, units_of
from torchrepro.cut.watched_values import watched_in
from torchrepro.execute.judge_repro import Prepared, judge_repro, truth_of
from torchrepro.judge.compare import same
from torchrepro.judge.execute import Run
from torchrepro.judge.models import Judged, Phase, without_compilers
from torchrepro.judge.randomness import RecordRandom
from torchrepro.judge.rule import Rule
from torchrepro.locate.sensitivity import nudged
from torchrepro.locate.watched_graph import Odd, Seen, Sighting
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict
from torchrepro.state.ambient import applied_settings

_REJUDGE_SECONDS = 20.0
"""For asking of wrong values, in the order of the graph, whether their op is wrong."""
_BLOCK = 1 << 22
"""Elements that are looked at in one go: three copies of them in float64 are 100 MB."""


def relative_error(value: Any, truth: Any) -> float | None:
    """The largest error, relative to the largest magnitude of the truth; None where they cannot be compared.

    Of a truth that is zero everywhere any error is all there is: 1. A number that is not finite where the
    truth is has an infinite error.
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
    """How many elements are not finite; without a truth none of them counts as strange."""
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
    """Both as rows of float64, a block at a time; a complex number is two elements."""
    plain = (
        torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        for tensor in (value.detach(), truth.detach())
    )
    for part, true in zip(*(tensor.reshape(-1).split(_BLOCK) for tensor in plain), strict=False):
        yield part.to("cpu", torch.float64), true.to("cpu", torch.float64)


def _rounded(true: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The truth as the dtype can hold it: beyond its range, infinity is right."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return true
    return true.to(dtype.to_real() if dtype.is_complex else dtype).to(torch.float64)


def _largest(values: torch.Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


_DRAWS = 3


class Rejudging:
    """The ops of a graph, with the values that its compiled form has computed."""

    def __init__(self, repro: Repro, values: Mapping[str, torch.Tensor], rule: Rule) -> None:
        plain = observed_values(repro, limit=0)  # numbers and sizes alone
        kept = {name: Kept(value.detach()) for name, value in values.items()}
        self._recording = replace(plain, values={**plain.values, **kept}, at_use={})
        self._repro = replace(repro, earlier=(), symbols=(), backward=False)
        self._rule = rule
        units = (unit for unit in units_of(repro.graph.graph, plain.several) if not unit.is_state)
        self._units = {name: unit for unit in units for name in unit.nodes}
        self._states = ambient_at(repro.graph.graph, repro.ambient)

    def at_fault(self, name: str) -> bool | None:
        """Whether the op makes something else of its operands than eager and float64 do; None: not known."""
        unit = self._units.get(name)
        if unit is None or unit.name in self._recording.late:
            return None
        cut = piece(self._repro, self._recording, unit.nodes)
        if cut is None:
            return None
        outputs: Any = cut.graph.graph.output_node().args[0]
        try:
            got = tuple(self._recording.result(node.name) for node in outputs)
        except NotRecorded:
            return None
        prepared, random = Prepared(replace(cut, ambient=self._states[unit.name])), RecordRandom()
        with torch.no_grad():
            eager = _results(prepared, cut.inputs, random)
            if random.is_random:
                return None  # alone it draws other numbers
            truth = tuple(truth_of(prepared, random.draws)[0].outputs)
            # In a fused kernel an operand is not rounded as it is where it is returned. What a rounding of
            # the operands makes of the result is not the op's fault either.
            roundings = (
                _results(prepared, nudged(cut.inputs, seed), RecordRandom()) for seed in range(_DRAWS)
            )
            return not any(same(one, got, truth, rule=self._rule) for one in chain([eager], roundings))


def _results(prepared: Prepared, inputs: tuple[Any, ...], random: RecordRandom) -> tuple[Any, ...]:
    prepared = Prepared(replace(prepared.repro, inputs=inputs))
    graph = prepared.graph()
    with without_compilers(), random:
        return tuple(prepared.observe(graph, graph, prepared.inputs()).outputs)


def watch(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Run all sides of a repro whose last outputs are the values of the named nodes: a `Sighting`."""
    names: list[str] = payload["names"]
    judged, rule = Judged(), Rule(strict=repro.strict, tol=repro.tolerance)
    with applied_settings(repro.ambient):
        verdict = judge_repro(repro, fp64=payload.get("fp64", True), phase=phase, steady=True, judged=judged)
        found = _sighting(repro, names, verdict, judged.runs, rule)
    return msgspec.to_builtins(found)


def raising(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """The node at which eager raises."""
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
    """The last outputs of a run by name; None for each where there was no such run."""
    if run is None or not isinstance(run.outputs, tuple | list):
        return dict.fromkeys(names)
    return dict(zip(names, list(run.outputs)[len(run.outputs) - len(names) :], strict=True))


def _at_fault(
    repro: Repro, values: Mapping[str, Any], wrong: list[str], rule: Rule
) -> dict[str, bool | None]:
    """Of the wrong values, in order: whether it is their op that is wrong; none is asked after the first."""
    found: dict[str, bool | None] = {}
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    rejudging = Rejudging(repro, tensors, rule)
    started = time.monotonic()
    for name in wrong:
        try:
            found[name] = rejudging.at_fault(name)
        except TorchReproError:  # there is no float64 run of this op alone: not known
            found[name] = None
        if found[name] or time.monotonic() - started > _REJUDGE_SECONDS:
            break
    return found
