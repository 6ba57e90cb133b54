"""What the oracle makes of compilations that run at the same time."""

from __future__ import annotations

import msgspec
import torch

from torchrepro.engine.oracle import IsolatedOracle, Timeout
from torchrepro.engine.processes.child import Outcome
from torchrepro.engine.processes.executor import Task
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Blame, Comparison, Difference, Kind, LeafComparison, Verdict

PASSES = Verdict(Kind.PASS, comparison=Comparison(()))
WRONG = Verdict(
    Kind.MISMATCH, comparison=Comparison((LeafComparison("out", Difference.VALUE, blamed=Blame.COMPILED),))
)
REFUSED = Verdict(Kind.COMPILE_ERROR)


class Scripted:
    """Answers tasks in the reverse of their order, by the verdict under the value of their input."""

    workers = 4

    def __init__(self, *verdicts: Verdict) -> None:
        self._verdicts = verdicts
        self.under_way: list[Task] = []
        self.cancelled = 0

    def start(self, task: Task) -> None:
        self.under_way.append(task)

    def wait(self) -> tuple[Task, Outcome]:
        task = self.under_way.pop()
        verdict = self._verdicts[int(task.repro.inputs[0])]
        return task, Outcome(result=[msgspec.to_builtins(verdict)])

    def cancel(self, task: Task) -> None:
        if task in self.under_way:
            self.under_way.remove(task)
            self.cancelled += 1


def rounds(*verdicts: Verdict) -> tuple[list[object], int]:
    executor = Scripted(*verdicts)
    graph = torch.fx.symbolic_trace(lambda x: (x,))
    repros = [Repro(graph, (torch.tensor(number),)) for number in range(len(verdicts))]
    answers = IsolatedOracle(executor, Timeout(1.0)).rounds_of_each(repros)
    assert not executor.under_way
    return [None if answer is None else answer[0].kind for answer in answers], executor.cancelled


def test_a_wrong_value_in_one_compilation_cancels_the_others() -> None:
    assert rounds(PASSES, PASSES, WRONG, PASSES) == ([None, None, Kind.MISMATCH, Kind.PASS], 2)


def test_without_a_wrong_value_all_are_finished() -> None:
    assert rounds(PASSES, REFUSED) == ([Kind.PASS, Kind.COMPILE_ERROR], 0)
