"""The op that fails by itself is found in a handful of questions, however large the graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from observing import ObserveHere

from torchrepro.cut.windows import windows_of, wrong_ones
from torchrepro.engine.queries import Queries
from torchrepro.minify.passes.nodes import cut_nodes
from torchrepro.minify.passes.windows import single_windows
from torchrepro.minify.problem import Problem
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Blame, Comparison, Difference, Kind, LeafComparison, Raised, Verdict

Fails = Callable[[Repro], bool]


def layers(count: int) -> Repro:
    """A model of equal layers with one relu in the middle."""

    def model(x: torch.Tensor) -> torch.Tensor:
        for layer in range(count):
            y = torch.tanh(torch.sin(x) * 0.5)
            if layer == count // 2:
                y = torch.relu(y)
            x = torch.cos(y.view(2, 8).transpose(0, 1).reshape(4, 4)) + x
        return x

    return Repro(torch.fx.symbolic_trace(model), (torch.randn(4, 4),))


def has(*ops: str) -> Fails:
    """Whether all of the named ops are in the graph."""
    return lambda repro: all(any(op in str(node) for node in repro.graph.graph.nodes) for op in ops)


def calls(repro: Repro) -> list[str]:
    return [node.name for node in repro.graph.graph.nodes if node.op not in ("placeholder", "output")]


class Oracle(ObserveHere):
    def __init__(self, fails: Fails, verdict: Verdict, workers: int = 1) -> None:
        self.workers = workers
        self.fails = fails
        self.verdict = verdict
        self.asked = 0

    def judge(self, candidates: Sequence[Repro], **job: Any) -> Iterator[tuple[int, Verdict]]:
        for index, candidate in enumerate(candidates):
            self.asked += 1
            yield index, self.verdict if self.fails(candidate) else Verdict(Kind.PASS)


def computes(repro: Repro, name: str) -> bool:
    return any(name in node for node in calls(repro))


CRASH = Verdict(Kind.CRASH, signal="SIGSEGV")
NAMED = Verdict(Kind.COMPILE_ERROR, raised=Raised("LoweringException", "x\n  target: aten.relu.default"))


@pytest.mark.parametrize("count", [5, 200])
def test_an_op_that_the_error_names_takes_one_question(count: int) -> None:
    oracle = Oracle(lambda repro: computes(repro, "relu"), NAMED)
    problem = Problem(Queries(layers(count), NAMED, oracle))
    single_windows(problem)
    assert calls(problem.best) == ["relu"]
    assert oracle.asked == 1


@pytest.mark.parametrize("count", [5, 200])
def test_an_op_that_nothing_names_is_found_by_bisection_over_distinct_ops(count: int) -> None:
    oracle = Oracle(lambda repro: computes(repro, "relu"), CRASH)
    problem = Problem(Queries(layers(count), CRASH, oracle))
    single_windows(problem)
    assert calls(problem.best) == ["relu"]
    assert oracle.asked <= 6, "ten distinct ops, three of which are views"


class WrongWhereLarge(ObserveHere):
    """Judges rounds as a compiler would be judged whose tanh is wrong for values above a threshold."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self.asked = 0

    def rounds(self, repro: Repro, **options: Any) -> Sequence[Verdict]:
        self.asked += 1
        return [self._verdict(repro.graph, inputs) for inputs in (repro.inputs, *repro.earlier)]

    def rounds_of_each(self, repros: Sequence[Repro]) -> Sequence[Sequence[Verdict] | None]:
        """Finish the compilations in reverse order, none after one with a failure."""
        answers: dict[int, Sequence[Verdict]] = {}
        for number, repro in reversed(list(enumerate(repros))):
            answers[number] = self.rounds(repro)
            if any(verdict.fails for verdict in answers[number]):
                break
        return [answers.get(number) for number in range(len(repros))]

    def _verdict(self, graph: torch.fx.GraphModule, inputs: tuple[Any, ...]) -> Verdict:
        operands = dict(zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True))
        bad = [
            LeafComparison(
                f"out[{place}]",
                Difference.VALUE,
                blamed=Blame.COMPILED,
                max_rel=float(operands[node.args[0]].max()),
            )
            for place, node in enumerate(graph.graph.output_node().all_input_nodes)
            if "tanh" in node.name and operands[node.args[0]].max() > self.threshold
        ]
        return Verdict(Kind.MISMATCH, comparison=Comparison(tuple(bad))) if bad else Verdict(Kind.PASS)


@pytest.mark.parametrize(("parts", "asked"), [(1, 1), (3, 1), (100, 7)])
def test_the_layer_with_the_values_that_matter_is_found_with_one_compilation(
    parts: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device, with one for each of some groups of ops."""
    monkeypatch.setattr(Queries, "parts_of", lambda self, repro: parts)
    repro = layers(40)
    values = ObserveHere().record(repro)
    assert values is not None
    operands = [
        values.value(str(node.args[0]), node.name).max()
        for node in repro.graph.graph.nodes
        if "tanh" in node.name
    ]
    threshold = float(sorted(operands)[-2])  # one layer of forty has a larger value
    wrong = Verdict(
        Kind.MISMATCH,
        comparison=Comparison((LeafComparison("out", Difference.VALUE, blamed=Blame.COMPILED),)),
    )

    def fails(candidate: Repro) -> bool:
        return computes(candidate, "tanh") and (
            candidate.ops > 1 or bool(candidate.inputs[0].max() > threshold)
        )

    observer = WrongWhereLarge(threshold)
    oracle = Oracle(fails, wrong)
    problem = Problem(Queries(repro, wrong, oracle, observer=observer))
    single_windows(problem)
    assert len(calls(problem.best)) == 1
    assert problem.best.inputs[0].max() > threshold
    assert oracle.asked == 1
    assert observer.asked == asked, (
        "nine distinct ops in the same state, the last of which are finished first"
    )


def test_parts_that_were_not_finished_are_compiled_if_what_was_found_is_not_enough() -> None:
    repro = layers(40)
    values = ObserveHere().record(repro)
    assert values is not None
    windows = windows_of(repro, values)
    observer = WrongWhereLarge(-1.0)  # every tanh is wrong
    answers = wrong_ones(repro, values, windows, observer.rounds_of_each, parts=len(windows))
    found = next(answers)
    assert ["tanh" in window.name for _, window in found] == [True]
    first = observer.asked
    assert first < len(windows)
    assert not any(answers)
    assert observer.asked == len(windows)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_two_ops_that_have_to_be_in_one_graph(workers: int) -> None:
    def together(repro: Repro) -> bool:
        return computes(repro, "relu") and computes(repro, "tanh_7")

    oracle = Oracle(together, CRASH, workers)
    problem = Problem(Queries(layers(50), CRASH, oracle))
    single_windows(problem)
    cut_nodes(problem)
    assert sorted(calls(problem.best)) == ["relu", "tanh_7"]
    assert oracle.asked <= 45


def test_an_op_and_its_reader() -> None:
    def chained(repro: Repro) -> bool:
        return any(
            node.op == "call_function"
            and node.name == "relu"
            and any("view" in user.name for user in node.users)
            for node in repro.graph.graph.nodes
        )

    oracle = Oracle(chained, CRASH)
    problem = Problem(Queries(layers(50), CRASH, oracle))
    cut_nodes(problem)
    assert len(calls(problem.best)) == 2
    assert oracle.asked <= 20


def test_a_failure_that_needs_a_whole_chain_keeps_it() -> None:
    def grown(repro: Repro) -> bool:
        return sum("sin" in name for name in calls(repro)) >= 12

    problem = Problem(Queries(layers(20), CRASH, Oracle(grown, CRASH, 2)))
    single_windows(problem)
    cut_nodes(problem)
    assert len(calls(problem.best)) == 12
