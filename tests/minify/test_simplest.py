"""Everything plain at once: what an ordinary failure of one op costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from input_search import first, search_inputs
from synthetic import problem_of, traced

from torchrepro.minify.passes.arguments import plainer_arguments
from torchrepro.minify.passes.simplest import guess_simplest
from torchrepro.nouns.repro import Ambient, Compiler, Repro
from torchrepro.nouns.verdict import Kind


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (lambda x: x.relu(), [torch.randn(4, 64)]),
        (lambda x: x.view(4, 2, 16).sum(1), [torch.randn(8, 16)]),
        (
            lambda x, w, b: F.layer_norm(x, (16,), w, b),
            [torch.randn(8, 16), torch.randn(16), torch.randn(16)],
        ),
        (lambda w, i: F.embedding(i, w), [torch.randn(100, 16), torch.randint(0, 100, (4, 8))]),
        (lambda x, w: F.conv2d(x, w, None, 2, 1), [torch.randn(2, 3, 16, 16), torch.randn(8, 3, 3, 3)]),
        (lambda x: torch.softmax(x + torch.full((8, 8), -1.0), -1), [torch.randn(8, 8)]),
        (lambda x: x.transpose(0, 1).reshape(16, 2, 4), [torch.randn(8, 16, dtype=torch.float64)]),
    ],
)
def test_an_op_that_always_fails_is_done_in_one_question(function, inputs):
    problem, asked = search_inputs(traced(function, *inputs), lambda repro: True)
    assert all(tensor.numel() == 1 for tensor in problem.best.inputs)
    assert all(tensor.flatten().item() in (0, 1) for tensor in problem.best.inputs)
    assert asked == 1


def test_settings_go_in_the_same_question():
    repro = traced(lambda x: x.relu(), torch.randn(4, 8))
    ambient = Ambient(matmul_precision="high", environ={"TORCHINDUCTOR_FREEZING": "1"})
    compiler = Compiler(mode="max-autotune", options={"max_fusion_size": 2})
    repro = replace(repro, ambient=ambient, compiler=compiler)
    problem, asked = search_inputs(repro, lambda repro: True)
    assert problem.best.ambient == Ambient()
    assert problem.best.compiler == Compiler()
    assert asked == 1


@pytest.mark.parametrize(("needed", "queries"), [("", 1), ("10", 2)])
def test_where_no_values_are_compared_arguments_become_plain_in_the_same_question(needed, queries):
    repro = traced(lambda x: x * 10, torch.randn(4, 8))
    problem = problem_of(repro, lambda repro: needed in repro.graph.code, Kind.CRASH)
    guess_simplest(problem)
    plainer_arguments(problem)
    assert problem.queries.asked == queries, "arguments that are needed are asked about once"
    assert f"x * {needed or 1}" in problem.best.graph.code


def test_chunks_of_a_projection_keep_their_number():
    def attention(x, w):
        parts = torch.split(F.linear(x, w), 16, -1)
        return parts[0] + parts[1] * parts[2]

    repro = traced(attention, torch.randn(8, 16), torch.randn(48, 16))
    problem, asked = search_inputs(repro, lambda repro: True)
    assert [tuple(tensor.shape) for tensor in problem.best.inputs] == [(1, 1), (3, 1)]
    assert asked == 1


def test_nothing_is_asked_where_nothing_could_be_smaller():
    repro = traced(lambda x: x.relu(), torch.ones(1))
    problem, asked = search_inputs(repro, lambda repro: True)
    assert problem.best is repro
    assert asked == 0


def test_a_value_that_one_shows_is_found_at_once():
    repro = traced(lambda x: x.relu(), torch.randn(4, 64))
    problem, asked = search_inputs(repro, lambda repro: bool((first(repro) > 0.5).any()))
    assert torch.equal(first(problem.best), torch.ones(1))
    assert asked == 1


class Tagged(torch.Tensor):
    """A subclass that is a class and nothing more."""


@pytest.mark.parametrize("needed", [False, True])
@pytest.mark.parametrize("kind", ["wrapper", "tagged", "sparse"])
def test_a_tensor_of_another_class_becomes_an_ordinary_one_unless_it_is_needed(kind, needed):
    from torch.testing._internal.two_tensor import TwoTensor

    given = {
        "wrapper": TwoTensor(torch.randn(4), torch.randn(4)),
        "tagged": torch.randn(4).as_subclass(Tagged),
        "sparse": torch.eye(4).to_sparse(),
    }[kind]
    repro = Repro(torch.fx.symbolic_trace(lambda x: (torch.relu(x),)), (given,))

    def fails(candidate):
        (value,) = candidate.inputs
        return not needed or (type(value), value.layout) == (type(given), given.layout)

    problem, _ = search_inputs(repro, fails)
    (found,) = problem.best.inputs
    assert (type(found) is torch.Tensor and found.layout is torch.strided) == (not needed)
