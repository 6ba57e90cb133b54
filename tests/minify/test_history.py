"""How the size fell: each best is noted, on disk too, and an interrupted search goes on with its numbers."""

from __future__ import annotations

from pathlib import Path

import torch
from minify.synthetic import SyntheticOracle, targets, traced

from torchrepro.engine.queries import Queries
from torchrepro.minify.passes.nodes import cut_nodes
from torchrepro.minify.problem import Problem
from torchrepro.minify.run_directory import append_to_history, read_history
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.results import Adoption
from torchrepro.nouns.verdict import Kind, Verdict


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.relu(torch.sin(torch.cos(x))))


def has_relu(repro: Repro) -> bool:
    return "relu" in targets(repro)


def searched(history: list[Adoption]) -> Problem:
    problem = Problem(
        Queries(traced(chain, torch.ones(3)), Verdict(Kind.MISMATCH), SyntheticOracle(has_relu)),
        history=history,
    )
    with problem.running("nodes"):
        cut_nodes(problem)
    return problem


def test_each_best_is_noted_with_what_it_had_cost_by_then() -> None:
    problem = searched([])
    assert problem.history
    last = problem.history[-1]
    assert (last.ops, last.inputs, last.elements) == (1, 1, 3)
    assert (problem.best_size.ops, problem.best_size.elements) == (1, 3)
    assert 0 < last.query <= problem.queries.asked
    assert last.pass_name == "nodes"
    assert [one.query for one in problem.history] == sorted(one.query for one in problem.history)


def test_an_interrupted_search_goes_on_counting() -> None:
    former = Adoption(100, 50.0, 9, 3, 30, "windows")
    problem = searched([former])
    assert problem.history[0] == former
    assert all(one.query > 100 and one.seconds >= 50.0 for one in problem.history[1:])


def test_the_file_outlives_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    assert read_history(path) == []
    steps = [Adoption(number, 0.5, 4 - number, 1, 1, "nodes") for number in range(3)]
    for step in steps:
        append_to_history(path, step)
    assert read_history(path) == steps
    path.write_text(path.read_text()[:-20])
    assert read_history(path) == steps[:2]
