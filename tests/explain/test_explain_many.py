"""Many sets of inputs for one compilation, in a child that may die of one of them."""

from __future__ import annotations

from typing import Any

import torch

from torchrepro.engine.processes.executor import Task
from torchrepro.engine.processes.outcome import Outcome
from torchrepro.explain.batched_jobs import judge_values, judging_many, verdicts_on
from torchrepro.nouns.repro import Compiler, Repro
from torchrepro.nouns.verdict import Kind, Verdict


def _doubled(x: torch.Tensor) -> tuple[torch.Tensor]:
    return (x * 2,)


compilations: list[int] = []


def wrong_below_zero(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
    """A compiler that is wrong where all is negative, raises where all is 3, and counts what it compiles."""
    compilations.append(1)

    def run(x: torch.Tensor) -> Any:
        if bool((x == 3).all()):
            raise ValueError("three")
        return (x * 2 if bool((x >= 0).all()) else x * 3,)

    return run


REPRO = Repro(
    torch.fx.symbolic_trace(_doubled), (torch.ones(2),), compiler=Compiler(f"{__name__}:wrong_below_zero")
)


def filled(*numbers: float) -> list[tuple[torch.Tensor]]:
    return [(torch.full((2,), number),) for number in numbers]


def test_one_compilation_answers_for_every_set_and_none_disturbs_the_next() -> None:
    compilations.clear()
    verdicts = verdicts_on(REPRO, filled(1, -1, 3, -2, 0), lambda phase: None)
    wanted = [Kind.PASS, Kind.MISMATCH, Kind.RUN_ERROR, Kind.MISMATCH, Kind.PASS]
    assert [verdict.kind for verdict in verdicts] == wanted
    assert len(compilations) == 1


class InProcess:
    """An executor that runs a task here, unless one of its sets is deadly."""

    workers = 1

    def __init__(self, deadly: float) -> None:
        self._deadly = deadly
        self._tasks: list[Task] = []
        self.ran = 0

    def start(self, task: Task) -> None:
        self._tasks.append(task)

    def wait(self) -> tuple[Task, Outcome]:
        task = self._tasks.pop(0)
        self.ran += 1
        if any(bool((inputs[0] == self._deadly).all()) for inputs in task.repro.earlier):
            return task, Outcome(phase="run", signal="SIGSEGV", exit_code=-11)
        return task, Outcome(result=judge_values(task.repro, task.payload, lambda phase: None))

    def cancel(self, task: Task) -> None: ...

    def close(self) -> None: ...


def test_a_child_that_dies_costs_only_the_set_that_killed_it() -> None:
    executor = InProcess(deadly=7)
    verdicts = judging_many(executor, time_limit=10)(REPRO, filled(1, -1, 7, 2))
    assert [verdict.kind for verdict in verdicts] == [Kind.PASS, Kind.MISMATCH, Kind.CRASH, Kind.PASS]
    assert verdicts[2] == Verdict(
        Kind.CRASH,
        verdicts[2].stage,
        summary="SIGSEGV (running the compiled function)",
        signal="SIGSEGV",
    )
    assert executor.ran == 5
