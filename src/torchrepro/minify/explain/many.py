"""Judge a repro on many sets of inputs in one child that compiles once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from torchrepro.errors import TorchReproError
from torchrepro.isolate.executor import Executor, Task
from torchrepro.isolate.outcome import Outcome
from torchrepro.isolate.supervise import verdict_of
from torchrepro.minify.explain.laboratory import JudgeMany
from torchrepro.repro import Repro
from torchrepro.verdict import Kind, Verdict


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
        "torchrepro.minify.explain.jobs:judge_values",
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
