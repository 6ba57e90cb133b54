"""Ops on the way from one op to another are left out, and what they read takes their place."""

from __future__ import annotations

from typing import Any

import torch
from random_graphs import leads_to
from synthetic import problem_of, targets, traced

from torchrepro.minify.passes.bypass import pass_ops_by


def long_way(x: Any, y: Any) -> Any:
    value = torch.sin(x)
    for _ in range(10):
        value = torch.relu(torch.atan2(y, torch.abs(value)))
    return torch.cos(value)


def test_the_way_between_two_ops_becomes_as_short_as_it_can() -> None:
    problem = problem_of(traced(long_way, torch.ones(3), torch.ones(3)), leads_to("sin", "cos").holds)
    pass_ops_by(problem)
    assert targets(problem.best) == ["sin", "cos"]
    assert len(problem.best.inputs) == 1
    assert problem.queries.asked <= 8  # `sin` is found by bisection


def test_what_changes_the_size_is_passed_by_where_the_rest_still_runs() -> None:
    def shorter(x: Any) -> Any:
        return torch.cos(torch.sum(torch.sin(x), dim=0))

    problem = problem_of(traced(shorter, torch.ones(3, 2)), leads_to("sin", "cos").holds)
    pass_ops_by(problem)
    assert targets(problem.best) == ["sin", "cos"]


def test_what_changes_the_size_stays_where_its_reader_needs_that() -> None:
    def product(x: Any) -> Any:
        return torch.cos(torch.mm(x, torch.t(torch.sin(x))))

    problem = problem_of(traced(product, torch.ones(3, 2)), leads_to("sin", "mm").holds)
    pass_ops_by(problem)
    assert targets(problem.best) == ["sin", "t", "mm", "cos"]


def test_one_op_or_ops_beside_one_another_need_no_question() -> None:
    for function in (lambda x: torch.sin(x), lambda x: (torch.sin(x), torch.cos(x))):
        problem = problem_of(traced(function, torch.ones(3)), lambda repro: True)
        pass_ops_by(problem)
        assert problem.queries.asked == 0
