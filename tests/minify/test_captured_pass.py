"""A whole call of the user's code gives way to the captured graph that fails by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from observing import ObserveHere
from synthetic import SyntheticOracle, targets

from torchrepro.bundle.user_calls import repro_of_call
from torchrepro.engine.queries import Queries
from torchrepro.execute.record_graphs import graphs_of_call
from torchrepro.minify.order import size_of
from torchrepro.minify.problem import Problem
from torchrepro.minify.registry import chosen_passes, search
from torchrepro.nouns.repro import Ambient, Compiler, Place, Repro
from torchrepro.nouns.verdict import Kind, Verdict


class CapturesHere(ObserveHere):
    """Captures in this process, with nothing but Dynamo."""

    def graphs(self, repro: Repro) -> Sequence[Repro]:
        return graphs_of_call(repro)[0]


def two_graphs(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x) + 1
    torch._dynamo.graph_break()
    return torch.tanh(torch.cos(y) * 2)


def whole_call() -> Repro:
    return repro_of_call(two_graphs, (torch.ones(3),), {}, compiler=Compiler(), ambient=Ambient())


def problem_of_call(fails: Callable[[Repro], bool]) -> Problem:
    oracle = SyntheticOracle(fails, Kind.RUN_ERROR)
    return Problem(Queries(whole_call(), Verdict(Kind.RUN_ERROR), oracle, observer=CapturesHere()))


def test_the_graph_that_fails_alone_is_searched_on() -> None:
    problem = problem_of_call(lambda repro: repro.place is Place.BEFORE_CAPTURE or "cos" in targets(repro))
    search(problem, chosen_passes())
    assert problem.best.place is Place.AFTER_CAPTURE
    assert targets(problem.best) == ["cos"]


def test_a_call_of_which_no_graph_fails_stays_a_call() -> None:
    problem = problem_of_call(lambda repro: repro.place is Place.BEFORE_CAPTURE)
    search(problem, chosen_passes(only=["captured"]))
    assert problem.best is problem.original
    assert problem.queries.statistics["captured"].queries == 2


def test_any_graph_is_smaller_than_code_of_the_users() -> None:
    graphs = graphs_of_call(whole_call())[0]
    assert len(graphs) == 2
    assert all(size_of(graph) < size_of(whole_call()) for graph in graphs)
