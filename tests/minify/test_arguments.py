"""Arguments become plain, and the ones that the failure needs stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from synthetic import problem_of, targets, traced
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from torchrepro.edit.validity import why_invalid
from torchrepro.minify.passes.arguments import plainer_arguments
from torchrepro.nouns.repro import Place, Repro


def arguments(repro: Repro) -> list[Any]:
    """Positional arguments that are no nodes, and keyword arguments, of each op."""
    found = []
    for node in repro.graph.graph.nodes:
        if node.op.startswith("call"):
            plain = [arg for arg in node.args if not isinstance(arg, torch.fx.Node)]
            found.append((plain, dict(node.kwargs)))
    return found


def shortened(
    function: Callable[..., Any], *inputs: Any, fails: Callable[[Repro], bool] = lambda r: True
) -> Any:
    problem = problem_of(traced(function, *inputs), fails)
    plainer_arguments(problem)
    assert not why_invalid(problem.best)
    return problem


X = torch.randn(4, 8)


def test_defaults_and_optional_tensors_are_left_out_in_one_query() -> None:
    problem = shortened(
        lambda x, w, b: functional.layer_norm(x, (8,), w, b, 1e-6), X, torch.ones(8), torch.ones(8)
    )
    assert arguments(problem.best) == [([(8,)], {})]
    assert len(problem.best.inputs) == 1
    assert problem.queries.asked == 1


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x * 0.35355, ([1.0], {})),
        (lambda x: x.sum(dim=-1, keepdim=True), ([], {})),
        (lambda x: torch.topk(x, 5), ([1], {})),
        (lambda x: functional.softmax(x, dim=-1), ([], {"dim": 0})),  # without it torch warns
        (lambda x: x.reshape(8, 4), ([8, 4], {})),
        (lambda x: functional.gelu(x, approximate="tanh"), ([], {})),
    ],
)
def test_an_argument_takes_its_plainest_form(function: Callable[..., Any], expected: Any) -> None:
    assert arguments(shortened(function, X).best)[0] == expected


def test_an_argument_that_matters_stays() -> None:
    problem = shortened(
        lambda x: functional.softmax(x * 0.3535, dim=-1).sum(dim=1, keepdim=True),
        X,
        fails=lambda repro: "0.3535" in repro.graph.code,
    )
    assert arguments(problem.best)[0] == ([0.3535], {})
    assert arguments(problem.best)[2] == ([], {})
    assert problem.queries.asked <= 8


def test_what_is_written_as_its_default_is_omitted_without_a_query_of_its_own() -> None:
    """`F.max_pool2d` has no signature of its own: that of the function which it calls names the defaults."""

    def pooled(x: torch.Tensor) -> Any:
        return functional.max_pool2d(x, 3, None, 0, 1, False, return_indices=False)

    problem = shortened(pooled, torch.randn(1, 1, 8, 8), fails=lambda repro: "x, 3" in repro.graph.code)
    assert arguments(problem.best) == [([3], {})]
    assert problem.queries.asked == 2, "a kernel of 1 is refused, with the defaults omitted as well"


def test_defaults_are_omitted_where_no_other_argument_can_be_plainer() -> None:
    problem = shortened(lambda x: functional.gelu(x, approximate="none"), X)
    assert arguments(problem.best) == [([], {})]
    assert problem.queries.asked == 1


def test_arguments_that_cannot_all_go_go_as_far_as_they_can() -> None:
    problem = shortened(lambda x: torch.clamp(x, min=0.1, max=2.0), X)
    ((_, kwargs),) = arguments(problem.best)
    assert kwargs in ({"min": 1.0}, {"max": 1.0})
    assert problem.queries.asked <= 2


def test_nothing_to_do_costs_nothing() -> None:
    problem = shortened(lambda x: torch.relu(x + 1), X)
    assert problem.queries.asked == 0


def test_ops_of_aten_lose_trailing_defaults() -> None:
    graph = make_fx(lambda x: torch.ops.aten.sum.dim_IntList(x, [0, 1], True))(X)
    problem = problem_of(Repro(graph, (X,), Place.AFTER_AOT), lambda repro: True)
    plainer_arguments(problem)
    assert arguments(problem.best) == [([[0]], {})]
    assert problem.queries.asked == 1


def test_writing_ops_are_left_alone() -> None:
    problem = shortened(lambda x: x.clone().add_(x, alpha=3), X)
    assert targets(problem.best) == ["clone", "add_"]
    assert arguments(problem.best)[1] == ([], {"alpha": 3})


def test_asking_again_costs_nothing() -> None:
    problem = shortened(lambda x: functional.elu(x, 0.7).mean(1), X)
    before = problem.queries.asked
    plainer_arguments(problem)
    assert problem.queries.asked == before


def test_many_arguments_that_all_matter_are_given_up_on_early() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for number in range(25):
            x = x * (number + 0.25)
        return x

    repro = traced(function, X)
    problem = problem_of(repro, lambda found: found.graph.code == repro.graph.code)
    plainer_arguments(problem)
    assert problem.queries.asked <= 25


def test_a_form_that_was_refused_is_not_tried_again() -> None:
    def fails(repro: Repro) -> bool:
        return all(isinstance(plain[-1], float) and plain[-1] > 1 for plain, _ in arguments(repro))

    problem = shortened(lambda x: x * 2.5, X, fails=fails)
    asked = problem.queries.asked
    assert problem.accept(replace(problem.best, inputs=(torch.ones(4, 8),)))
    plainer_arguments(problem)
    assert problem.queries.asked == asked + 1, "only the smaller input was asked about"
