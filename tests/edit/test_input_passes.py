"""The passes over inputs on random graphs and random conditions: what holds whatever fails."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from input_search import ConditionOracle, runs, search_inputs
from synthetic import problem_of, traced

from torchrepro.edit.dimensions import dimension_table
from torchrepro.minify.passes.arguments import plainer_arguments
from torchrepro.minify.passes.values import ordinary_tensors
from torchrepro.nouns.repro import Repro
from torchrepro.nouns.verdict import Kind

MOST_QUESTIONS = 100
"""For graphs of a few ops, with up to four dimensions of up to 40."""


def _pointwise(a, b, c):
    return traced(lambda x, y: (x + y).relu() * 2, torch.randn(a, b), torch.randn(b))


def _linear(a, b, c):
    return traced(lambda x, w, s: F.linear(x, w, s), torch.randn(a, b), torch.randn(c, b), torch.randn(c))


def _norm(a, b, c):
    return traced(lambda x, w: F.layer_norm(x, (b,), w), torch.randn(a, b), torch.randn(b))


def _viewed(a, b, c):
    return traced(lambda x: x.view(a, b, 2).sum(1).t(), torch.randn(a * b, 2))


def _joined(a, b, c):
    return traced(lambda x, y: torch.cat([x, y], 1).softmax(-1), torch.randn(a, b), torch.randn(a, c))


def _looked_up(a, b, c):
    return traced(lambda w, i: w[i].sum(-1), torch.randn(a, b), torch.randint(0, a, (c,)))


GRAPHS = st.sampled_from([_pointwise, _linear, _norm, _viewed, _joined, _looked_up])
SIZES = st.integers(1, 40)


@st.composite
def conditions(draw, repro):
    """A condition that the repro satisfies: on a size, on a value, on a dtype, or on two of them."""
    index = draw(st.integers(0, len(repro.inputs) - 1))
    tensor = repro.inputs[index]
    axis = draw(st.integers(0, tensor.dim() - 1))
    least = draw(st.integers(1, tensor.shape[axis]))
    limit = draw(st.sampled_from([0.0, 0.5, 1.0])) * float(tensor.abs().max())
    wanted = draw(st.sets(st.sampled_from(["size", "value", "dtype"]), max_size=2))

    def fails(repro: Repro) -> bool:
        now = repro.inputs[index]
        return (
            ("size" not in wanted or (now.dim() > axis and now.shape[axis] >= least))
            and ("value" not in wanted or bool((now.abs() >= limit * 0.99).any()))
            and ("dtype" not in wanted or now.dtype is tensor.dtype)
        )

    return fails


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), build=GRAPHS, a=SIZES, b=SIZES, c=SIZES, double=st.booleans(), seed=st.integers(0, 9))
def test_the_result_fails_runs_and_is_minimal(data, build, a, b, c, double, seed):
    torch.manual_seed(seed)
    repro = build(a, b, c)
    if double:
        widened = (x.double() if x.dtype.is_floating_point else x for x in repro.inputs)
        repro = Repro(repro.graph, tuple(widened))
    kept, code = [x.clone() for x in repro.inputs], repro.graph.code
    condition = data.draw(conditions(repro))

    problem, asked = search_inputs(repro, condition, workers=data.draw(st.integers(1, 3)))

    assert all(map(torch.equal, repro.inputs, kept))
    assert repro.graph.code == code
    assert condition(problem.best)
    assert runs(problem.best)
    assert asked <= MOST_QUESTIONS
    oracle = ConditionOracle(condition)
    table = dimension_table(problem.best, problem.best_verdict)
    for each in table.free:
        for start in (0, 1) if each.size > 1 else ():
            smaller = table.resized({each.name: each.size - 1}, {each.name: start})
            assert smaller is None or not oracle.verdict(smaller).fails


def test_an_input_that_cannot_be_ordinary_is_not_asked_about_again_after_an_argument_has_become_plainer():
    sparse = traced(lambda x: x * 10, torch.eye(3).to_sparse())
    problem = problem_of(sparse, lambda repro: repro.inputs[0].is_sparse, Kind.CRASH)
    ordinary_tensors(problem)
    plainer_arguments(problem)
    asked = problem.queries.asked
    ordinary_tensors(problem)
    assert asked == problem.queries.asked == 2
    assert "x * 1" in problem.best.graph.code
