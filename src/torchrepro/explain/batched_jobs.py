"""The child's side of `many.py`: one compilation, judged on many sets of inputs.

Judge a repro on many sets of inputs in one child that compiles once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import torch

from torchrepro.engine.processes.executor import Executor, Task
from torchrepro.engine.processes.outcome import Outcome
from torchrepro.engine.processes.supervise import verdict_of
from torchrepro.execute.judge_repro import (
    Prepared,
    judge_repro,
    repro_common,
    subject_of_prepared,
)
from torchrepro.explain.experiment import JudgeMany
from torchrepro.judge.execute import named_state
from torchrepro.judge.models import Phase, Phases, Subject, judge
from torchrepro.judge.rule import Rule
from torchrepro.nouns.errors import TorchReproError
from torchrepro.nouns.repro import Place, Repro
from torchrepro.nouns.verdict import Kind, Verdict
from torchrepro.state.ambient import applied_settings


def judge_values(repro: Repro, payload: Mapping[str, Any], phase: Phase) -> Any:
    """A verdict for each set of inputs: the calls in `repro.earlier` after the repro's own earlier ones."""
    own = payload["earlier"]
    single = replace(repro, earlier=repro.earlier[:own])
    return [msgspec.to_builtins(verdict) for verdict in verdicts_on(single, repro.earlier[own:], phase)]


def verdicts_on(repro: Repro, sets: Sequence[tuple[Any, ...]], phase: Phase) -> list[Verdict]:
    """Each set by itself: none sees what another one has written or raised."""
    if repro.place is Place.BEFORE_CAPTURE or repro.earlier:
        # Capture looks at values, and earlier calls leave traces: these are compiled anew for each.
        return [judge_repro(replace(repro, inputs=inputs), phase=phase) for inputs in sets]
    phases = Phases(phase)
    compiled = _CompiledOnce(repro_common(repro), phases)
    with applied_settings(repro.ambient):
        return [
            judge(
                compiled.subject(inputs),
                rule=Rule(strict=repro.strict, tol=repro.tolerance),
                rng=repro.ambient.rng or None,
                phase=phases,
                # What agrees with itself on the first inputs is not run twice on all others.
                steady=number > 0,
            )
            for number, inputs in enumerate(sets)
        ]


class _CompiledOnce:
    """A repro whose compiled function is kept for the next set; what raises while compiling is tried anew."""

    def __init__(self, prepared: Prepared, phase: Phases) -> None:
        self._prepared = prepared
        self._phase = phase
        self._compiled: tuple[torch.fx.GraphModule, Callable[..., Any]] | None = None
        self._state: dict[str, torch.Tensor] = {}

    def subject(self, inputs: tuple[Any, ...]) -> Subject:
        prepared = Prepared(replace(self._prepared.repro, inputs=inputs))
        return subject_of_prepared(prepared, self._phase, self._function)

    def _function(self) -> tuple[torch.fx.GraphModule, Callable[..., Any]]:
        """The compiled function, on buffers as they were before any call of it."""
        if self._compiled is None:
            self._compiled = self._prepared.compile()
            state = named_state(self._compiled[0])
            self._state = {name: tensor.detach().clone() for name, tensor in state.items()}
        with torch.no_grad():
            for name, tensor in named_state(self._compiled[0]).items():
                tensor.copy_(self._state[name])
        return self._compiled


def judging_many(executor: Executor, *, time_limit: float, memory_limit: int | None = None) -> JudgeMany:
    """`judge_many` on an executor that has nothing else to do.

    A child that dies is replaced by two with half of the sets each, until it is known which set kills it.
    """

    def judge_many(repro: Repro, sets: Sequence[tuple[Any, ...]]) -> Sequence[Verdict]:
        outcome = _run(executor, _task(repro, sets, time_limit, memory_limit))
        if outcome.result is not None:
            return [msgspec.convert(verdict, Verdict) for verdict in outcome.result]
        if len(sets) == 1:
            return [_verdict_of_death(outcome, time_limit)]
        half = len(sets) // 2
        return [*judge_many(repro, sets[:half]), *judge_many(repro, sets[half:])]

    return judge_many


def _verdict_of_death(outcome: Outcome, time_limit: float) -> Verdict:
    """Where not even eager comes to an end, nothing can be said about the compiler."""
    try:
        return verdict_of(outcome, time_limit)
    except TorchReproError as exc:
        return Verdict(Kind.INVALID, summary=str(exc), seconds=outcome.seconds)


def _task(repro: Repro, sets: Sequence[tuple[Any, ...]], time_limit: float, memory_limit: int | None) -> Task:
    """The sets travel as calls of the repro, which every executor knows how to take along."""
    return Task(
        "torchrepro.explain.batched_jobs:judge_values",
        replace(repro, earlier=(*repro.earlier, *sets)),
        {"earlier": len(repro.earlier)},
        time_limit=time_limit,
        memory_limit=memory_limit,
    )


def _run(executor: Executor, task: Task) -> Outcome:
    executor.start(task)
    while True:
        ended, outcome = executor.wait()
        if ended is task:
            return outcome
