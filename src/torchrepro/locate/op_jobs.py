"""What runs in a child while the guilty op is looked for: values stay there, numbers come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import torch

from torchrepro.cut.record_values import raising_node
from torchrepro.cut.watched_values import watched_in
from torchrepro.execute.judge_repro import subject_of_repro
from torchrepro.judge.execute import Run
from torchrepro.judge.models import Phase, Phases, Subject, judge
from torchrepro.judge.rule import Rule
from torchrepro.locate.conditioning import response_of
from torchrepro.locate.error_measure import oddities, relative_error
from torchrepro.locate.observations import Seen, Sighting
from torchrepro.locate.rejudge_op import Rejudging
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Verdict
from torchrepro.state.ambient import applied_settings

_REJUDGING = 20.0
"""Seconds for asking of wrong values, in the order of the graph, whether their op is wrong."""


def watch(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """Run all sides of a repro whose last outputs are the values of the named nodes: a `Sighting`."""
    names: list[str] = payload["names"]
    phases = Phases(phase)
    runs = _Runs(subject_of_repro(repro, phases, fp64=payload.get("fp64", True)))
    rule = Rule(strict=repro.strict, tol=repro.tolerance)
    with applied_settings(repro.ambient):
        verdict = judge(runs.kept_apart, rule=rule, rng=repro.ambient.rng or None, phase=phases, steady=True)
        found = _sighting(repro, names, verdict, runs, rule)
    return msgspec.to_builtins(found)


def sensitivity(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """What a rounding of the inputs makes of the results, in float64: a `Response`."""
    phase("reference")
    with applied_settings(repro.ambient):
        return msgspec.to_builtins(response_of(repro))


def raising(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """The node at which eager raises."""
    phase("eager")
    return raising_node(repro)


@dataclass(eq=False)
class _Runs:
    """A subject, and what its runs have left behind."""

    subject: Subject
    found: dict[str, Run] = field(default_factory=dict)

    @property
    def kept_apart(self) -> Subject:
        truth = self.subject.truth

        def true(draws: Any) -> tuple[Run, tuple[str, ...]]:
            assert truth is not None
            run, notes = truth(draws)
            self.found["truth"] = run
            return run, notes

        return Subject(
            self._keeping("eager", self.subject.eager),
            self._keeping("compiled", self.subject.compiled),
            None if truth is None else true,
        )

    def _keeping(
        self, name: str, run: Callable[[AbstractContextManager[Any]], Run]
    ) -> Callable[[AbstractContextManager[Any]], Run]:
        def kept(around: AbstractContextManager[Any]) -> Run:
            self.found[name] = run(around)
            return self.found[name]

        return kept

    def values(self, side: str, count: int) -> list[Any]:
        """The last outputs of a run; None for each where there was no such run."""
        run = self.found.get(side)
        if run is None or not isinstance(run.outputs, tuple | list):
            return [None] * count
        return list(run.outputs)[len(run.outputs) - count :]


def _sighting(repro: Repro, names: list[str], verdict: Verdict, runs: _Runs, rule: Rule) -> Sighting:
    sides = (runs.values(side, len(names)) for side in ("eager", "compiled", "truth"))
    values = dict(zip(names, zip(*sides, strict=True), strict=True))
    leaves = {} if verdict.comparison is None else watched_in(verdict.comparison, repro, names)
    wrong = {name for name, leaf in leaves.items() if not leaf.same}
    guilty = _guilty(repro, {name: compiled for name, (_, compiled, _) in values.items()}, names, wrong, rule)
    seen = tuple(
        Seen(
            name,
            wrong=name in wrong,
            guilty=guilty.get(name),
            eager=relative_error(eager, truth),
            compiled=relative_error(compiled, truth),
            eager_odd=oddities(eager, truth),
            compiled_odd=None if compiled is None else oddities(compiled, truth),
        )
        for name, (eager, compiled, truth) in values.items()
    )
    own = () if verdict.comparison is None else verdict.comparison.differing
    watched = {leaf.path for leaf in leaves.values()}
    elsewhere = tuple(leaf.path for leaf in own if leaf.path not in watched)
    return Sighting(replace(verdict, comparison=None), seen, elsewhere, _nan_inputs(repro))


def _nan_inputs(repro: Repro) -> tuple[str, ...]:
    wanted = repro.graph.graph.find_nodes(op="placeholder")
    given = zip(wanted, repro.inputs, strict=False)
    return tuple(node.name for node, value in given if oddities(value, None).nan)


def _guilty(
    repro: Repro, values: Mapping[str, Any], names: list[str], wrong: set[str], rule: Rule
) -> dict[str, bool | None]:
    """Of the wrong values, in order: whether it is their op that is wrong; none is asked after the first."""
    if not wrong:
        return {}
    found: dict[str, bool | None] = {}
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    rejudging = Rejudging(repro, tensors, rule)
    started = time.monotonic()
    for name in [name for name in names if name in wrong]:
        try:
            found[name] = rejudging.guilty(name)
        except TorchReproError:  # there is no float64 run of this op alone: not known
            found[name] = None
        if found[name] or time.monotonic() - started > _REJUDGING:
            break
    return found
